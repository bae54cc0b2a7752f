"""Numbers of frozen specs: one way for all of them.

Whole numbers are Python's or numpy's; True is none, nor is a text. Other numbers are finite too, unless a spec says that
infinity means "no limit". What comes in as a numpy scalar is kept as Python's own, so that it prints and hashes as such,
and minus zero as zero.
"""

from dataclasses import fields
from math import isfinite, isnan
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args

from meshwright.hardware.errors import InputError, shown


def is_whole(value: object) -> bool:
    """Whether it is a whole number; neither True nor 3.0 is."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object, infinite: bool = False) -> bool:
    """Whether it is a number: no bool, no nan, and no infinity unless that is allowed."""
    if is_whole(value):
        return True
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isnan(value) if infinite else isfinite(value)


def make_plain(spec: Any) -> None:
    """Turn the numpy scalars of a frozen dataclass into Python's numbers, and -0.0 into 0.0; also inside tuples."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if (made := _plain(value)) is not value:
            object.__setattr__(spec, field.name, made)


def check_fields(spec: Any, error: type[InputError] = InputError, infinite: tuple[str, ...] = ()) -> None:
    """`make_plain`, then each field by the type it is declared with; infinity is a number for those in `infinite`.

    Raises:
        error: the first whole number, number or flag that is none.
    """
    make_plain(spec)
    for field in fields(spec):
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        value, more = getattr(spec, field.name), ""
        if type(None) in kinds:
            if value is None:
                continue
            more = ", or None"
        if float in kinds:
            endless = field.name in infinite
            good, wanted = is_number(value, endless), f"a {'' if endless else 'finite '}number"
        elif int in kinds:
            good, wanted = is_whole(value), "a whole number"
        elif bool in kinds:
            good, wanted = isinstance(value, bool), "True or False"
        elif tuple[int, ...] in kinds:
            good, wanted = isinstance(value, tuple) and all(map(is_whole, value)), "a tuple of whole numbers"
        else:
            continue
        if not good:
            raise error(f"{field.name} is {shown(value)}; give {wanted}{more}")


def _plain(value: Any) -> Any:
    if type(value) in (int, bool, str):
        return value
    if isinstance(value, tuple):
        made = tuple(map(_plain, value))
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if type(value) is float:
        return 0.0 if value == 0 else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) + 0.0
    return value.item() if type(value).__name__ == "bool" and hasattr(value, "item") else value
