"""The user's limits: `decode_ms <= 20, memory_bytes <= 20GiB, params >= 4e9, kv_bytes <= 2GiB`.

Grammar: comma-separated `name (<=|>=) value`. The name carries the unit, so that a number may stand bare; a value
with a unit is taken too. Names in `_ms` mean the total in `_s`. A time or size read off an answer, in ten digits, is a
limit that its own choice keeps.
"""

import re
from collections.abc import Callable

from meshwright.hardware import units
from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.search.asked import ROUNDED
from meshwright.search.layers.problem import Limit

_ITEM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=)\s*(\S(?:.*\S)?)\s*", re.DOTALL)
_LONGEST = 2000  # characters
NAMES = (
    "decode_ms",
    "decode_s",
    "prefill_ms",
    "prefill_s",
    "memory_bytes",
    "weight_bytes",
    "kv_bytes",
    "params",
)


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Read limits. Errors: InputError, UnknownNameError; what does not read, and how to write it."""
    check_type("limits", text, str, "a text such as 'decode_ms <= 20, params >= 4e9'")
    if len(text) > _LONGEST:
        raise InputError(f"the limits have {len(text)} characters; at most {_LONGEST} are read")
    return tuple(_one(item.strip()) for item in text.split(",") if item.strip())


def parse_value(name: str, text: str) -> tuple[str, float]:
    """(total, value in SI) of a value of a named limit. Errors: as `parse_limits`."""
    if name not in NAMES:
        raise UnknownNameError("limit", name, NAMES)
    total = name.removesuffix("_ms") + "_s" if name.endswith("_ms") else name
    try:
        value = float(text)
    except ValueError:
        return total, float(_UNITS[_kind(total)](text))
    if not 0 <= value < float("inf"):
        raise InputError(f"{name} of {shown(text)} is no finite number of at least zero; give one")
    return total, value / 1e3 if name.endswith("_ms") else value


def told(total: str, value: float) -> str:
    """A value of a total as a reader wants it."""
    match _kind(total):
        case "s":
            return units.human_seconds(value)
        case "bytes":
            return units.human_bytes(value)
        case "params":
            return units.human_rate(value, "").strip()
    return f"{value:.6g}"


def _kind(total: str) -> str:
    return total.rsplit("_", 1)[-1]


_UNITS: dict[str, Callable[[object], float]] = {
    "s": units.parse_seconds,
    "bytes": units.parse_bytes,
    "params": units.parse_count,
}


def _one(item: str) -> Limit:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise InputError(
            f"cannot read limit {shown(item)}; write name <= value or name >= value, like decode_ms <= 20"
        )
    name, compare, text = match.groups()
    try:
        total, value = parse_value(name, text)
    except UnknownNameError:
        raise
    except InputError as error:
        raise InputError(f"limit {shown(item)}: {error}") from None
    slack = 1.0 if total == "params" else ROUNDED  # parameters are printed to the last
    return (
        Limit(total, most=value * slack, text=item)
        if compare == "<="
        else Limit(total, least=value / slack, text=item)
    )
