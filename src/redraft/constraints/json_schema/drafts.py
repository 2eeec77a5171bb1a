"""What a schema says under the draft that it declares: a keyword that came later is none yet.

To obey such a keyword would do no harm where it only narrows, but what fails it does not fail the schema: under `not`,
`oneOf` and `if` the language would hold what the schema forbids.
"""

from __future__ import annotations

NEWEST = 2020
ALONE_UNTIL = 7
"""Up to this draft a reference stands alone: its neighbours say nothing."""
_NAMES = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "draft/2019-09": 2019}
_SINCE: dict[int, frozenset[str]] = {
    4: frozenset({"allOf", "anyOf", "oneOf", "not", "minProperties", "maxProperties", "multipleOf"}),
    6: frozenset({"const", "contains", "propertyNames"}),
    7: frozenset({"if", "then", "else"}),
    2019: frozenset({"dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems",
                     "minContains", "maxContains", "$recursiveRef"}),
    2020: frozenset({"prefixItems", "$dynamicRef"}),
}  # fmt: skip
"""Keywords that say something about validity, by the draft that brought them."""


def draft_of(uri: str) -> int:
    """The draft that `$schema` names: the newest for one that is unknown, and where none is named."""
    return next((number for name, number in _NAMES.items() if name in uri), NEWEST)


def later_than(draft: int) -> frozenset[str]:
    """Keywords that a draft does not know yet."""
    return frozenset().union(*(names for since, names in _SINCE.items() if since > draft))
