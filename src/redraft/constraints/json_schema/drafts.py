"""What a schema means under the draft it declares: later keywords do not count yet.

Obeying a later keyword would do no harm where it only narrows. But failing it does not fail the schema, so under `not`,
`oneOf` and `if` the language would contain what the schema forbids.
"""

from __future__ import annotations

NEWEST = 2020
ALONE_UNTIL = 7
"""Up to this draft a `$ref` stands alone: its sibling keywords are ignored."""
CONTAINED_SINCE = 2020
"""From this draft on `unevaluatedItems` ignores items that obey `contains`."""
_NAMES = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "draft/2019-09": 2019}
_SINCE: dict[int, frozenset[str]] = {
    4: frozenset({"allOf", "anyOf", "oneOf", "not", "minProperties", "maxProperties", "multipleOf"}),
    6: frozenset({"const", "contains", "propertyNames"}),
    7: frozenset({"if", "then", "else"}),
    2019: frozenset({"dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems",
                     "minContains", "maxContains", "$recursiveRef"}),
    2020: frozenset({"prefixItems", "$dynamicRef"}),
}  # fmt: skip
"""Keywords that affect validity, by the draft that introduced them."""


def draft_of(uri: str) -> int:
    """The draft that `$schema` names; the newest if it names none or an unknown one."""
    return next((number for name, number in _NAMES.items() if name in uri), NEWEST)


def later_than(draft: int) -> frozenset[str]:
    """Keywords that were introduced after a draft."""
    return frozenset().union(*(names for since, names in _SINCE.items() if since > draft))
