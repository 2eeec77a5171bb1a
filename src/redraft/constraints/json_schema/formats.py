"""The `format`s that JSON Schema and pydantic define, each as a pattern whose matches are valid (some leave out rare
forms).

Lengths that the RFCs limit are not counted: 253 characters of a host name, 63 of a label, 64 before an address' `@`.
Counting even half a label's length takes 64 states instead of 8 and 900 edges instead of 23 wherever a host name
occurs, and a limit below the RFCs' would cut names that exist.
"""

from __future__ import annotations

_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX, _HEX4 = r"[0-9a-fA-F]", r"[0-9a-fA-F]{1,4}"

# RFC 3339. The year 0000 is left out: Python's calendar begins with 0001.
_YEAR = r"([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = r"(0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = rf"([0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_MONTH_DAY = r"((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = rf"({_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"

# RFC 3339, appendix A: no unit between two written units may be left out.
_COUNT = r"[0-9]{1,4}"
_DAYS = rf"{_COUNT}D"
_MONTHS = rf"{_COUNT}M({_DAYS})?"
_MINUTES = rf"{_COUNT}M({_COUNT}S)?"
_CLOCK = rf"T({_COUNT}H({_MINUTES})?|{_MINUTES}|{_COUNT}S)"
_DURATION = rf"P(({_COUNT}Y({_MONTHS})?|{_MONTHS}|{_DAYS})({_CLOCK})?|{_CLOCK}|{_COUNT}W)"

# RFC 1123. No two hyphens in a row: RFC 5891, 4.2.3.1, forbids them in places three and four, and tracking the place
# takes states.
_ALNUM = r"[A-Za-z0-9]"
_LABEL = rf"{_ALNUM}+(-{_ALNUM}+)*"
_HOST = rf"{_LABEL}(\.{_LABEL})*"

# RFC 5321, 4.1.2. Most validators, such as pydantic's and zod's, want several labels after the @, the last of letters.
_ATEXT = r"[A-Za-z0-9_+-]"
_EMAIL = rf"{_ATEXT}+(\.{_ATEXT}+)*@({_LABEL}\.)+[A-Za-z]{{2,}}"

# RFC 3986, which does not limit the lengths of host names.
_ENCODED = rf"%{_HEX}{{2}}"
_PART = rf"([A-Za-z0-9._~!$&'()*+,;=:@-]|{_ENCODED})"
_PLAIN_PART = rf"([A-Za-z0-9._~!$&'()*+,;=@-]|{_ENCODED})"
_USER = rf"([A-Za-z0-9._~!$&'()*+,;=:-]|{_ENCODED})*@"
_NAME = rf"{_ALNUM}+(-+{_ALNUM}+)*"
_AUTHORITY = rf"({_USER})?{_NAME}(\.{_NAME})*(:[0-9]{{1,5}})?"
_PATHS = rf"(/{_PART}*)*"
_TAIL = rf"(\?({_PART}|[/?])*)?(#({_PART}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(//{_AUTHORITY}{_PATHS}|/?{_PART}+{_PATHS}|/?){_TAIL}"
_REFERENCE = rf"{_URI}|(/{_PART}+{_PATHS}|{_PLAIN_PART}+{_PATHS}|/){_TAIL}|#({_PART}|[/?])*"
_TEMPLATE = _URI.replace("'", "")  # RFC 6570, 2.1

# RFC 4291, 2.2: eight groups, or fewer around a "::".
_IPV6 = "|".join([
    rf"({_HEX4}:){{7}}({_HEX4}|:)", *(rf"({_HEX4}:){{1,{n}}}(:{_HEX4}){{1,{7 - n}}}" for n in range(1, 7)),
    rf"({_HEX4}:){{1,6}}:", rf":((:{_HEX4}){{1,7}}|:)",
])  # fmt: skip

_POINTER = r"(/([^/~]|~[01])*)*"  # RFC 6901

_IPV4 = rf"({_OCTET}\.){{3}}{_OCTET}"
_IPV4_INTERFACE = rf"{_IPV4}(/(3[0-2]|[12]?[0-9]))?"
_IPV6_INTERFACE = rf"({_IPV6})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"


def _ipv4_network() -> str:
    """An address whose bits behind the prefix are zero, as Python's `ipaddress` asks; alone it is a network, too."""
    found = [r"0\.0\.0\.0/0", rf"{_IPV4}(/32)?"]
    for whole in range(4):
        for bits in range(1, 9):
            octet = "|".join(map(str, range(0, 256, 1 << (8 - bits))))
            zeros = r"\.0" * (3 - whole)
            found.append(rf"({_OCTET}\.){{{whole}}}({octet}){zeros}/{8 * whole + bits}")
    return "|".join(found)


# Of shorter prefixes only those of whole groups, written with "::".
_IPV6_NETWORK = "|".join([
    rf"({_IPV6})(/128)?", "::/0", *(rf"{_HEX4}(:{_HEX4}){{{n - 1}}}::/{16 * n}" for n in range(1, 7)),
])  # fmt: skip


def _uuid(version: str, variant: str) -> str:
    return rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


PATTERNS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "host-name": _HOST,
    "ipv4": _IPV4,
    "ip-address": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "iri": _URI,
    "iri-reference": _REFERENCE,
    "uri-template": _TEMPLATE,
    "uuid": _uuid(_HEX, _HEX),
    "json-pointer": _POINTER,
    # The `jsonschema` package allows no digit after a zero, so 10 but not 100.
    "relative-json-pointer": rf"(0|[1-9]{{1,3}}[0-9]?)(#|{_POINTER})",
    "regex": r"\^?[A-Za-z0-9_ -]*\$?",
    "color": rf"#{_HEX}{{6}}",
    # What pydantic writes for its own types and for those of Python's `ipaddress`.
    **{f"uuid{version}": _uuid(version, "[89abAB]") for version in "1345678"},
    "ipv4network": _ipv4_network(),
    "ipv6network": _IPV6_NETWORK,
    "ipv4interface": _IPV4_INTERFACE,
    "ipv6interface": _IPV6_INTERFACE,
    "ipvanyaddress": rf"{_IPV4}|{_IPV6}",
    "ipvanynetwork": rf"{_ipv4_network()}|{_IPV6_NETWORK}",
    "ipvanyinterface": rf"{_IPV4_INTERFACE}|{_IPV6_INTERFACE}",
}
"""Any other format (`textarea`, `path`, …) does not affect validity and is ignored."""

INTEGER_FORMATS: dict[str, tuple[int, int]] = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
