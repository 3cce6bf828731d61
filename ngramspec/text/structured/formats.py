"""FORMATS: what a `format` of JSON schemas allows, as patterns."""

from __future__ import annotations

import functools

from ngramspec.text.structured.pattern import rust_pattern

MAX_FORMAT = 2000  # characters of a format's pattern
_OCTET = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
_IPV4 = f"{_OCTET}(\\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_YEAR = "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
_LEAP = "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)"
    f"|02-(0[1-9]|1\\d|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,2}}"  # at most 253 characters
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"
_PLAIN = "a-zA-Z0-9._~!$&'()*+,;=-"  # what a URI holds as it is
_ENCODED = "%[0-9a-fA-F]{2}"
_DAYTIME = "T(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S)"
_DAYS = "(\\d{1,4}Y(\\d{1,4}M(\\d{1,4}D)?)?|\\d{1,4}M(\\d{1,4}D)?|\\d{1,4}D)"


def _ipv6() -> str:
    """Return the forms of RFC 4291: 8 groups, or :: in place of some."""
    forms = [f"({_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):  # groups before ::, up to 7 - before behind it
        head = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
        after = 7 - before
        tail = f"({_GROUP}(:{_GROUP}){{0,{after - 1}}})?" if after else ""
        forms.append(f"{head}::{tail}")
    return "|".join(forms)


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_DAYS}({_DAYTIME})?|{_DAYTIME}|\\d{{1,4}}W)",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "email": f"{_ATOM}(\\.{_ATOM}){{0,1}}@{_LABEL}(\\.{_LABEL}){{1,2}}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": (
        f"[a-zA-Z][a-zA-Z0-9+.-]{{1,20}}:(//({_HOST}|{_IPV4})(:\\d{{1,5}})?(/([:@/{_PLAIN}]|{_ENCODED}){{0,300}})?"
        f"|([:@{_PLAIN}]|{_ENCODED}){{1,100}})"
        f"(\\?([:@/?{_PLAIN}]|{_ENCODED}){{0,200}})?(#([:@/?{_PLAIN}]|{_ENCODED}){{0,50}})?"
    ),
}


@functools.cache
def format_pattern(name: str) -> str:
    """Return the pattern of one of FORMATS, for the whole text, as rust_pattern writes it."""
    return rust_pattern(f"^({FORMATS[name]})$", MAX_FORMAT)
