"""The `format`s that JSON Schema defines, each as a pattern whose matches are valid (some leave out rare forms).

The lengths of host names are not limited: counting their characters would take hundreds of states.
"""

from __future__ import annotations

_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_DATE = r"[12][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_SHORT_LABEL = r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_HOST = rf"{_SHORT_LABEL}(\.{_SHORT_LABEL})*"
_PART, _PLAIN_PART = r"[A-Za-z0-9._~!$&'()*+,;=:@-]", r"[A-Za-z0-9._~!$&'()*+,;=@-]"
_PATHS = rf"(/{_PART}*)*"
_TAIL = rf"(\?({_PART}|/)*)?(#({_PART}|/)*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(//{_HOST}(:[0-9]{{1,5}})?{_PATHS}|/?{_PART}+{_PATHS}|/?){_TAIL}"
_REFERENCE = rf"{_URI}|(/{_PART}+{_PATHS}|{_PLAIN_PART}+{_PATHS}|/){_TAIL}|#({_PART}|/)*"
_HEX4 = r"[0-9a-fA-F]{1,4}"

PATTERNS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)?|T[0-9]{1,4}[HMS])",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_HOST}",
    "idn-email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_HOST}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "host-name": _HOST,
    "ipv4": rf"({_OCTET}\.){{3}}{_OCTET}",
    "ip-address": rf"({_OCTET}\.){{3}}{_OCTET}",
    "ipv6": rf"({_HEX4}:){{7}}{_HEX4}|({_HEX4}:){{1,6}}:{_HEX4}|::({_HEX4}(:{_HEX4}){{0,5}})?",
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "iri": _URI,
    "iri-reference": _REFERENCE,
    "uri-template": _URI,
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "json-pointer": r"(/[A-Za-z0-9_.-]*)*",
    "relative-json-pointer": r"(0|[1-9][0-9]{0,3})(/[A-Za-z0-9_.-]*)*",
    "regex": r"\^?[A-Za-z0-9_ -]*\$?",
    "color": r"#[0-9a-fA-F]{6}",
}
"""A format that no draft of JSON Schema defines (`textarea`, `path`, …) says nothing about validity and is ignored."""

INTEGER_FORMATS: dict[str, tuple[int, int]] = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
