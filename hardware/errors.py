"""Every error this project raises on purpose.

    MeshwrightError
    ├── InputError            the user's input is wrong; the command line exits with 2
    │   ├── UnknownNameError  no such chip, model, fabric ...; says the nearest names
    │   ├── UnitError         a quantity without its unit, or with the wrong one
    │   ├── ClusterError      a machine that does not exist, or a cluster string that does not parse
    │   ├── ModelError        a model configuration that cannot be read exactly
    │   ├── WorkloadError     a batch or sequence length that does not divide
    │   └── LayoutError       a layout or constraint that breaks a rule
    ├── MissingFigureError    a figure that no source gives (a peak for a dtype, host memory ...); exits with 2
    └── MissingExtraError     an optional part of the program is not installed; exits with 5

A message is one line: the rule, both numbers, and the way out.
"""

import difflib
from collections.abc import Iterable

_MOST_LISTED = 30  # names that an error line still lists in full
_FEW = 8  # names that are listed even beside a near one
_LONGEST = 60  # characters of a given value that an error line shows


class MeshwrightError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 2


class InputError(MeshwrightError):
    """The input is wrong; the message says what to give instead."""


class UnknownNameError(InputError):
    """A name that no catalogue holds; `see` says where all are listed, for catalogues too long for a line; up to `few` names
    are listed also beside a near one."""

    def __init__(
        self, what: str, name: str, known: Iterable[str], where: str = "", see: str = "", few: int = _FEW
    ) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        if close:
            hint = f"; did you mean {' or '.join(close)}?"
            hint += f" Known: {', '.join(names)}" if len(names) <= few else ""
        elif see:
            hint = f"; {see}"
        elif len(names) <= _MOST_LISTED:
            hint = f"; known: {', '.join(names)}"
        else:
            hint = f"; {len(names)} are known, such as {', '.join(names[:3])}"
        super().__init__(f"unknown {what} {name[:80]!r}{hint}{f' ({where})' if where else ''}")


class UnitError(InputError):
    """A quantity without its unit, or with the wrong one."""


class ClusterError(InputError):
    """A cluster that does not exist or does not parse."""


class ModelError(InputError):
    """A model configuration that cannot be read exactly."""


class WorkloadError(InputError):
    """A batch or sequence length that breaks a rule."""


class LayoutError(InputError):
    """A layout or constraint that breaks a rule."""


class MissingFigureError(MeshwrightError):
    """A figure that no source gives; never guessed."""


class MissingExtraError(MeshwrightError):
    """An optional part of the program is not installed."""

    exit_code = 5

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part; install it with: pip install 'meshwright[{extra}]'")


def shown(value: object) -> str:
    """A value as it was given, short and on one line; `str` in quotes."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested without end; an integer of thousands of digits
        return "a value too large to print"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def check_type(
    what: str,
    value: object,
    kinds: type | tuple[type, ...],
    taken: str,
    error: type[InputError] = InputError,
) -> None:
    """Raises `error` where `value` is of none of `kinds`; `taken` says what to give instead.

    For the doors of the library, where a value of any type may come in. True is no number.
    """
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and bool not in listed and object not in listed
    ):
        raise error(f"{what} is {shown(value)}; give {taken}")
