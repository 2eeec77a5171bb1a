"""What the references of a schema document point to: resources with their own `$id`, anchors, places.

A reference means something different in every resource. So the document is read once, and references inside an embedded
resource are written out in full; after that, a reference is unambiguous by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urljoin

from redraft.constraints.automaton import Budget, BudgetError
from redraft.constraints.json_schema.drafts import ALONE_UNTIL, draft_of, later_than
from redraft.constraints.json_schema.keywords import malformed, text_of
from redraft.constraints.json_schema.shapes import Node, Raw
from redraft.errors import ConstraintError

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose members are schemas under arbitrary names."""
_PARTS = frozenset({
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "type", "extends",
    "disallow",
})  # fmt: skip
"""Keywords that contain a schema or a list of them."""
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords that contain no schemas, whatever they look like."""
_REMARKS = frozenset({"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"})
"""Keywords that do not tell schemas apart."""
_Key = TypeVar("_Key", str, tuple[str, str])
_ANCHORS = ("$anchor", "$dynamicAnchor")


class PlacedError(ConstraintError):
    """An error whose sentence names its place in the document."""


class Document:
    """A schema and everything in it that a reference may point to."""

    def __init__(self, schema: Raw, budget: Budget) -> None:
        self._budget = budget
        root = schema if isinstance(schema, Mapping) else {}
        declared = text_of(root, "$schema")
        self.draft = draft_of(declared)
        self._later = later_than(self.draft)
        plain = not declared and "$id" not in root and isinstance(root.get("id"), str)
        self._id = "id" if plain or self.draft <= 4 else "$id"
        # Where references stand alone an `$id` next to one is ignored. A document that only looks old may be either.
        self._alone = plain or self.draft <= ALONE_UNTIL
        own = text_of(root, self._id).partition("#")[0]
        self._base = self._place(root, "")[0]
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._equal: dict[Hashable, Any] = {}
        self._numbers: dict[int, int] = {}
        self.root: Raw = self._read(schema, self._base)
        self._resources[""] = self._resources[own] = self._resources[self._base] = self.root

    def resolve(self, reference: Any) -> Raw:
        """The schema that a reference points to. Raises `ConstraintError` if it is outside the document."""
        self._budget.check(0, "The schema")  # references alone make a small document long to read
        if not isinstance(reference, str):
            malformed("$ref", reference)
        uri, _, fragment = _joined(self._base, reference).partition("#")
        if uri in self._resources and (not fragment or fragment.startswith("/")):
            return _pointed(self._resources[uri], reference, fragment)
        if (uri, fragment) in self._anchors:
            return self._anchors[uri, fragment]
        raise _unknown(reference)

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Errors name the place of these schemas, unless they name one further inside, or are about the whole."""
        try:
            yield
        except (BudgetError, PlacedError):
            raise
        except ConstraintError as error:
            raise PlacedError(self.placed(str(error), node)) from error

    def placed(self, sentence: str, node: Node) -> str:
        """A sentence with the places of those schemas of a node that are inside the document."""
        found = [path for raw in node if isinstance(raw, Mapping) and (path := _path_to(raw, self.root, "#"))]
        places = " and ".join(f"{path!r:.200}" for path in found if path != "#")
        return f"{sentence.removesuffix('.')} (at {places})." if places else sentence

    def obeyed(self, raw: Any) -> Any:
        """A schema without the keywords that have no effect under the draft the document declares."""
        if not isinstance(raw, Mapping):
            return raw
        if "$ref" in raw and self.draft <= ALONE_UNTIL:
            return {"$ref": raw["$ref"]}
        later = self._later & raw.keys()
        return {name: value for name, value in raw.items() if name not in later} if later else raw

    def standing(self, raw: Any) -> Any:
        """What a schema certainly requires, so that failing it fails the schema: `obeyed` minus doubtful keywords."""
        alone = self._alone and isinstance(raw, Mapping) and "$ref" in raw
        return {"$ref": raw["$ref"]} if alone else self.obeyed(raw)

    def _read(self, raw: Any, base: str, known: bool = True) -> Any:
        """A copy of what stands where a schema may, with the references of embedded resources written out in full.

        Equal schemas have one copy, so what many places say alike is read once, and recursion through any is seen.
        Inside keywords that are not `known`, schemas are also found by their names, if no other one has the name.
        """
        if isinstance(raw, list):
            return [self._read(item, base, known) for item in raw]
        if not isinstance(raw, Mapping):
            return raw
        outer, (base, anchor) = base, self._place(raw, base)
        found = {key: self._member(key, value, base, known) for key, value in raw.items()}
        found = self._one_copy(found) if known else found
        if base != outer:
            _name(self._resources, base, found, known)
        for name in (anchor, *(raw.get(key) for key in _ANCHORS)):
            if name and isinstance(name, str):
                _name(self._anchors, (base, name), found, known)
        return found

    def _one_copy(self, found: dict[str, Any]) -> dict[str, Any]:
        told = tuple((name, self._told(value)) for name, value in found.items() if name not in _REMARKS)
        found = self._equal.setdefault(told, found)
        self._numbers.setdefault(id(found), len(self._numbers))
        return found

    def _told(self, value: Any) -> Hashable:
        """Equal things for equal JSON, written alike, in which other schemas have their copies."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if isinstance(value, Mapping):
            return Mapping, *((name, self._told(part)) for name, part in value.items())
        if isinstance(value, list | tuple):
            return list, *map(self._told, value)
        return type(value), repr(value), getattr(value, "text", "")

    def _place(self, raw: Mapping[str, Any], base: str) -> tuple[str, str]:
        """The URI of the resource a schema belongs to, and the anchor that older drafts write as an id."""
        own = raw.get(self._id)
        if not isinstance(own, str) or (self._alone and "$ref" in raw and not own.startswith("#")):
            return base, ""
        uri, _, anchor = _joined(base, own).partition("#")
        return uri, anchor

    def _member(self, key: str, value: Any, base: str, known: bool) -> Any:
        if key == "$ref" and isinstance(value, str) and base != self._base:
            return _joined(base, value)
        if key in _MAPS and isinstance(value, Mapping):
            return {name: self._read(schema, base, known) for name, schema in value.items()}
        return value if key in _DATA else self._read(value, base, known and key in _PARTS)


def _name(table: dict[_Key, Any], key: _Key, found: Any, known: bool) -> None:
    if known:
        table[key] = found
    else:
        table.setdefault(key, found)


def _joined(base: str, reference: str) -> str:
    # `urljoin` does not know that a URN may have a fragment.
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError as error:  # such as an unclosed bracket
        raise ConstraintError(f"{reference!r:.80} in the schema is not an address: {error}.") from error


def _path_to(wanted: Mapping[str, Any], found: Any, path: str) -> str:
    """The JSON pointer from `found`, which is at `path`, to a schema inside it; empty if it is not there."""
    if found is wanted:
        return path
    parts = found.items() if isinstance(found, Mapping) else enumerate(found) if isinstance(found, list) else ()
    deeper = (_path_to(wanted, part, f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}") for key, part in parts)
    return next(filter(None, deeper), "")


def _pointed(found: Any, reference: str, path: str) -> Raw:
    """What a JSON pointer, empty or beginning with a slash, leads to."""
    for part in path.split("/")[1:]:
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            raise _unknown(reference)
    return found


def _unknown(reference: str) -> ConstraintError:
    return ConstraintError(f"The schema keyword '$ref' names {reference!r}, which is not in the document.")
