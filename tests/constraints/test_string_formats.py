"""Every match of a format's pattern is valid, by two packages' judgement."""

import datetime
import functools
import ipaddress
import json
import random
import uuid
from typing import Any

import jsonschema
import jsonschema_rs
import pydantic
import pytest

from redraft.constraints.automaton import Budget, Dfa, ranges_of
from redraft.constraints.json_schema import compile_schema
from redraft.constraints.json_schema.formats import PATTERNS
from redraft.constraints.regex import parse_regex
from redraft.constraints.spelling import compile_bytes, compile_codes
from redraft.errors import ConstraintError

LONGEST_HOST, LONGEST_LABEL, LONGEST_LOCAL = 253, 63, 64
"""Lengths that are not counted, as the documentation says."""
SAME = {"host-name": "hostname", "ip-address": "ipv4"}
"""Formats of draft 3 and their names now."""
OF_PYDANTIC = {f"uuid{version}": getattr(pydantic, f"UUID{version}") for version in (1, 3, 4, 5, 6, 7, 8)} | {
    "ipv4network": ipaddress.IPv4Network, "ipv6network": ipaddress.IPv6Network,
    "ipv4interface": ipaddress.IPv4Interface, "ipv6interface": ipaddress.IPv6Interface,
    "ipvanyaddress": pydantic.IPvAnyAddress, "ipvanynetwork": pydantic.IPvAnyNetwork,
    "ipvanyinterface": pydantic.IPvAnyInterface,
}  # fmt: skip
"""Formats that no draft defines, by the types for which pydantic writes them."""
TYPES = OF_PYDANTIC | {
    "date": datetime.date, "time": datetime.time, "date-time": datetime.datetime, "duration": datetime.timedelta,
    "uuid": uuid.UUID, "uri": pydantic.AnyUrl, "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address,
}  # fmt: skip


@functools.cache
def _automaton(name: str) -> Dfa:
    return compile_codes(parse_regex(PATTERNS[name]), Budget())


def _walk(dfa: Dfa, dice: random.Random) -> str:
    """A random string that is accepted, of states and characters alike."""
    state, text, stop = 0, "", dice.choice([0.02, 0.1, 0.3, 0.6])
    while True:
        moves = ranges_of(dfa, state)
        if dfa.accept[state] and (not moves or dice.random() < stop):
            return text
        state, ranges = dice.choice(list(moves.items()))
        text += chr(dice.randint(*dice.choice(ranges)))


@pytest.mark.parametrize("name", sorted(PATTERNS.keys() - OF_PYDANTIC.keys()))
def test_random_matches_are_valid(name: str) -> None:
    dice, judged = random.Random(0), SAME.get(name, name)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    other = jsonschema_rs.Draft202012Validator({"format": judged}, validate_formats=True)
    for _ in range(300):
        text = _walk(_automaton(name), dice)
        host = text.rpartition("@")[2]
        long = len(host) > LONGEST_HOST or max(map(len, host.split("."))) > LONGEST_LABEL
        if ("host" in judged or "email" in judged) and (long or len(text) - len(host) > LONGEST_LOCAL + 1):
            continue
        assert checker.conforms(text, judged), text
        assert other.is_valid(text), text


@pytest.mark.parametrize("name", TYPES)
def test_what_pydantic_writes_for_a_type_is_what_it_reads(name: str) -> None:
    adapter, dice = pydantic.TypeAdapter(TYPES[name]), random.Random(1)
    assert adapter.json_schema().items() >= {"type": "string", "format": name}.items()
    for _ in range(300):
        adapter.validate_json(json.dumps(_walk(_automaton(name), dice)))


@pytest.mark.parametrize(("name", "texts"), [
    ("date", ["2024-02-29", "2000-02-29", "0004-02-29", "0001-01-01", "0987-12-31", "9999-12-31"]),
    ("date-time", ["2024-02-29T00:00:00Z", "0800-02-29T23:59:59.5-08:00"]),
    ("duration", ["PT1H30M", "P1Y2M3DT4H", "P1Y", "P3M", "P2W", "P1DT12H", "PT36H", "PT1M30S", "P1Y2M3DT4H5M6S"]),
    ("uri", ["https://a.org/a%20b?q=%C3%A9#%2F", "ftp://user:p%40ss@a--b.org:21/x", "mailto:a@b.org", "a://b?c?/d"]),
    ("uri-reference", ["a%20b", "/a%2Fb?c", "#%41"]), ("hostname", ["a" * 63 + ".b-c.org"]),
    ("email", ["first.last+tag@mail.example.org", "a" * 64 + "@b.org"]), ("relative-json-pointer", ["0", "10/a", "1#"]),
    ("json-pointer", ["", "/", "/paths/~1users~1{id}/get", "/a b/~0/é%\""]),
    ("ipv6", ["1:2:3:4:5:6:7:8", "2001:db8:85a3::8a2e:370:7334", "2001:db8::", "::", "::1", "1::8", "1:2:3:4:5:6:7::"]),
    ("ipv4network", ["10.0.0.0/8", "192.168.4.0/22", "10.1.2.128/25", "10.1.2.3/32", "10.1.2.3", "0.0.0.0/0"]),
    ("ipv6network", ["2001:db8::/32", "fd00:1:2:3::/64", "::1/128", "::1", "::/0"]),
    ("uuid4", ["9c5b94b1-35ad-49bb-b118-8e8fc24abf80"]),
])  # fmt: skip
def test_common_forms_are_written(name: str, texts: list[str]) -> None:
    assert [text for text in texts if not _automaton(name).matches(map(ord, text))] == []


@pytest.mark.parametrize(("name", "texts"), [
    ("date", ["2023-02-29", "1900-02-29", "2100-02-29", "2024-02-30", "0000-01-01", "2024-04-31"]),
    ("duration", ["P", "PT", "P1YT", "P1Y2D", "PT1H2S", "P1W2D", "P1D2M", "1D"]),
    ("hostname", ["ab--c", "xn--a", "-a", "a-", "a..b", ""]),
    ("email", [".a@b.org", "a.@b.org", "a..b@c.org", "@b.org", "a@b", "a@b.c", "a@1.2", "a@b.org."]),
    ("uri", ["https://a.org/%2", "https://a.org/%GG", "https://a@b@c/", "a b:c"]), ("uri-template", ["a:'"]),
    ("json-pointer", ["a", "/a~", "/~2"]),
    ("ipv6", ["1:2:3:4:5:6:7", "1::2::3", "1:2:3:4:5:6:7::8", ":1", "1:", "12345::"]),
    ("ipv4network", ["10.0.0.1/8", "10.1.2.3/31", "10.0.0.0/33", "10.0.0/8"]),
    ("uuid4", ["9c5b94b1-35ad-19bb-b118-8e8fc24abf80", "9c5b94b1-35ad-49bb-7118-8e8fc24abf80"]),
])  # fmt: skip
def test_what_is_not_valid_is_not_written(name: str, texts: list[str]) -> None:
    assert [text for text in texts if _automaton(name).matches(map(ord, text))] == []


@pytest.mark.parametrize("schema", [
    {"type": "string", "format": "email", "enum": ["o'brien@example.com", "a@b.c"]},
    {"type": "string", "format": "uri-template", "const": "/users/{id}"},
    {"propertyNames": {"format": "email"}, "properties": {"o'b@x.y": {"const": 1}}, "required": ["o'b@x.y"],
     "additionalProperties": False, "type": "object"},
])  # fmt: skip
def test_what_a_schema_lists_is_allowed_whatever_its_format(schema: dict[str, Any]) -> None:
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    listed = schema.get("enum", [schema.get("const", {"o'b@x.y": 1})])
    assert all(dfa.matches(json.dumps(value, separators=(",", ":")).encode()) for value in listed)


def test_a_listed_value_never_fails_by_its_format() -> None:
    schema = {"enum": ["o'brien@example.com", 1], "not": {"format": "email", "type": "string"}}
    with pytest.raises(ConstraintError, match="'not'"):
        compile_schema(schema | {"type": "string"}, Budget(), strict=True)
    dfa = compile_bytes(compile_schema(schema, Budget(), strict=True), Budget())
    assert [dfa.matches(text) for text in (b"1", b'"o\'brien@example.com"')] == [True, False]


def test_dates_are_those_of_the_calendar() -> None:
    for year in (*range(1, 420), *range(1580, 2420), *range(9590, 10000)):
        leap = _automaton("date").matches(map(ord, f"{year:04}-02-29"))
        assert leap == (datetime.date(year, 3, 1) - datetime.date(year, 2, 1) == datetime.timedelta(29)), year
