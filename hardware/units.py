"""Quantities as people write them, and as the program holds them.

The only file with unit letters. Text comes in with its unit and leaves as SI (bytes, bytes/s, FLOP/s, s);
a bare number is refused, except for counts. `GB` is 1e9 bytes and `GiB` is 2**30; letters are read
case by case, because `Gb` and `GB` differ by eight.

Errors: UnitError, with what was given and what to write instead.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

from meshwright.hardware.errors import UnitError, shown

_DECIMAL = {p: Decimal(1000) ** i for i, p in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_BINARY = {f"{p}i": Decimal(1024) ** i for i, p in enumerate(("", "K", "M", "G", "T", "P", "E")) if p}
_PREFIX = {**_DECIMAL, "K": Decimal(1000), **_BINARY}

_BYTES = {f"{p}B": f for p, f in _PREFIX.items()}
_BYTE_RATE = {
    **{f"{u}/s": f for u, f in _BYTES.items()},
    **{f"{p}bit/s": f / 8 for p, f in _DECIMAL.items()},
    **{f"{p}bps": f / 8 for p, f in _DECIMAL.items()},
}
_FLOP_RATE = {f"{p}{u}/s": f for p, f in _DECIMAL.items() for u in ("FLOP", "OP")}
_FLOP = {f"{p}{u}": f for p, f in _DECIMAL.items() for u in ("FLOP", "OP")}
_HERTZ = {f"{p}Hz": f for p, f in _DECIMAL.items()}
_PARAM_RATE = {f"{p}param/s": f for p, f in _DECIMAL.items()}
_WATTS = {f"{p}W": f for p, f in _DECIMAL.items()}
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
# "B" is a billion here: counts of tokens and parameters are written 15T and 70B.
_COUNT = {**_PREFIX, "B": Decimal(10) ** 9}

# Three digits of exponent at most, so that a hostile '1e999999999' never reaches decimal arithmetic.
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*)", re.DOTALL | re.ASCII)


def parse_bytes(text: object) -> int:
    """Bytes from '80 GiB', '141 GB', '512B'; the nearest whole byte."""
    value = _parse(text, "a size", _BYTES, "'80 GiB' or '141 GB'", ceiling=Decimal("1e21"))
    return _whole(round(value), text, "a size", "'80 GiB' or '141 GB'")


def parse_bytes_per_s(text: object) -> float:
    """Bytes per second from '450 GB/s' or '400 Gbit/s'."""
    return float(_parse(text, "a rate", _BYTE_RATE, "'450 GB/s' or '400 Gbit/s'", ceiling=Decimal("1e18")))


def parse_flop_per_s(text: object) -> float:
    """Operations per second from '989 TFLOP/s' or '393 TOP/s'."""
    return float(_parse(text, "a peak", _FLOP_RATE, "'989 TFLOP/s' or '393 TOP/s'", ceiling=Decimal("1e24")))


def parse_flop(text: object) -> float:
    """Operations from '1 TFLOP' or '393 GOP'."""
    return float(_parse(text, "a number of operations", _FLOP, "'1 TFLOP'", ceiling=Decimal("1e30")))


def parse_hertz(text: object) -> float:
    """Cycles per second from '1.75 GHz'."""
    return float(_parse(text, "a clock", _HERTZ, "'1.75 GHz'", ceiling=Decimal("1e12")))


def parse_params_per_s(text: object) -> float:
    """Parameters per second from '3 Gparam/s' (what an optimizer on the host updates)."""
    return float(_parse(text, "an update rate", _PARAM_RATE, "'3 Gparam/s'", ceiling=Decimal("1e18")))


def parse_watts(text: object) -> float:
    """Watts from '700 W' or '1.2 kW'."""
    return float(_parse(text, "a power", _WATTS, "'700 W' or '1.2 kW'", ceiling=Decimal("1e12")))


def parse_seconds(text: object) -> float:
    """Seconds from '1 us', '2ms', '30d'. Zero is allowed."""
    value = _parse(text, "a time", _SECONDS, "'1 us', '2 ms' or '30 d'", ceiling=Decimal("1e12"), zero=True)
    return float(value)


def parse_count(text: object) -> int:
    """A whole number from '15T', '4Mi', '4M', '128' or a bare int."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    value = _parse(
        text, "a count", _COUNT, "'4Mi', '15T' or a whole number", ceiling=Decimal("1e18"), bare=True
    )
    if value != round(value):
        raise UnitError(f"{shown(text)} is not a whole number; write a count like '4Mi' or '1.5M'")
    return int(value)


def _parse(
    text: object,
    what: str,
    units: Mapping[str, Decimal],
    example: str,
    *,
    ceiling: Decimal,
    zero: bool = False,
    bare: bool = False,
) -> Decimal:
    match = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 80 else None
    if match is None:
        if isinstance(text, int | float) and not isinstance(text, bool):
            raise UnitError(f"{shown(text)} has no unit; write {what} like {example}")
        raise UnitError(f"cannot read {shown(text)}; write {what} like {example}")
    number, unit = Decimal(match[1].replace("_", "")), match[2]
    if not unit and not bare:
        raise UnitError(f"{shown(text)} has no unit; write {what} like {example}")
    if unit not in units and not (bare and not unit):
        raise UnitError(
            f"unknown unit {unit!r} in {shown(text)}{_hint(unit, units)}; write {what} like {example}"
        )
    value = number * units[unit] if unit else number
    if value < 0 or (value == 0 and not zero):
        raise UnitError(f"{shown(text)} is not above zero; write {what} like {example}")
    if value > ceiling:
        raise UnitError(
            f"{shown(text)} is beyond any machine: {what} is at most {ceiling:.0e}{'' if bare else ' in SI units'}; "
            f"write it like {example}"
        )
    return value


def _whole(value: int, text: object, what: str, example: str) -> int:
    if value < 1:
        raise UnitError(f"{shown(text)} is less than one byte; write {what} like {example}")
    return value


def _hint(unit: str, units: Mapping[str, Decimal]) -> str:
    close = [u for u in units if u.casefold() == unit.casefold()]
    if unit.endswith("b/s"):  # could mean either; never guessed
        close = [unit[:-3] + "bit/s", unit[:-3] + "B/s"]
    return f" (is it {' or '.join(close[:2])}?)" if close else ""


def _for_pydantic(parse: Callable[[object], float]) -> BeforeValidator:
    def check(text: object) -> float:
        try:
            return parse(text)
        except UnitError as error:  # pydantic reports ValueErrors with the field's name
            raise ValueError(str(error)) from error

    return BeforeValidator(check)


Bytes = Annotated[int, _for_pydantic(parse_bytes)]
BytesPerSecond = Annotated[float, _for_pydantic(parse_bytes_per_s)]
FlopPerSecond = Annotated[float, _for_pydantic(parse_flop_per_s)]
Seconds = Annotated[float, _for_pydantic(parse_seconds)]
Count = Annotated[int, _for_pydantic(parse_count)]


def human_bytes(size_bytes: float) -> str:
    """Binary prefix, four digits: '80 GiB', '16.5 MiB'."""
    return _scaled(size_bytes, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def human_rate(per_s: float, unit: str = "B/s") -> str:
    """Decimal prefix, four digits: '450 GB/s'; with unit='FLOP/s': '989 TFLOP/s'."""
    return _scaled(per_s, 1000.0, tuple(p + unit for p in ("", "k", "M", "G", "T", "P", "E")))


def human_seconds(seconds: float) -> str:
    """'3.2 us', '15 ms', '2.5 s', '3.1 h', '30 d'."""
    for name in ("d", "h", "min", "s", "ms", "us"):
        scale = float(_SECONDS[name])
        if abs(seconds) >= scale:
            return f"{_digits(seconds / scale)} {name}"
    return f"{_digits(seconds * 1e9)} ns" if seconds else "0 s"


def human_count(count: int) -> str:
    """Exact where a short form is: '4Mi', '15T', '70B', '2048'; otherwise four digits."""
    if abs(count) < 10_000:
        return str(count)
    for suffix in ("T", "B", "M", "K"):
        short = f"{_digits(count / float(_COUNT[suffix]))}{suffix}"
        if abs(count) >= _COUNT[suffix] and parse_count(short) == count:
            return short
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        scale = int(_COUNT[suffix])
        if count % scale == 0:
            return f"{count // scale}{suffix}"
    return _scaled(count, 1000.0, ("", "K", "M", "B", "T", "P", "E")).replace(" ", "")


def _scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    scaled, index = float(value), 0
    while index < len(names) - 1 and abs(float(f"{scaled:.4g}")) >= base:
        scaled, index = scaled / base, index + 1
    return f"{_digits(scaled)} {names[index]}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
