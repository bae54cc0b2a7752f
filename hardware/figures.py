"""A figure is a value with its unit, where it comes from and how far to trust it."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from meshwright.hardware import units
from meshwright.hardware.errors import InputError, UnitError, shown
from meshwright.hardware.files import read_text

DATA = Path(__file__).parent / "data"
Confidence = Literal["vendor", "secondary", "derived"]


class Strict(BaseModel):
    """Base of all data models: nothing unknown gets in, nothing changes later."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag(cls, value: object, info: ValidationInfo) -> object:
        """True is no number, though it could be read as 1."""
        taken = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (taken, *get_args(taken)):
            raise ValueError(f"{str(value).lower()} is no value of it")
        return value


class Figure(Strict):
    """One published value. `text` keeps the unit as printed; `si` is what the program uses.

    confidence: vendor (the maker or operator published it), secondary (someone else prints or measured
    it), derived (computed here or in the fact base; the rule is in `note`).
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads `text: 8` as a number

    text: str
    source: str
    confidence: Confidence
    note: str = ""

    @property
    def si(self) -> float:
        """The value in SI units."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _parses(self) -> "Figure":
        try:
            _ = self.si
        except UnitError as error:
            raise ValueError(str(error)) from error
        if self.confidence == "derived" and not self.note:
            raise ValueError(f"derived figure {self.text!r} must state its rule in note")
        return self


class BytesFigure(Figure):
    """si in bytes."""

    @property
    def si(self) -> float:
        return units.parse_bytes(self.text)


class RateFigure(Figure):
    """si in bytes/s, one way."""

    @property
    def si(self) -> float:
        return units.parse_bytes_per_s(self.text)


class FlopFigure(Figure):
    """si in FLOP/s (or integer operations/s), dense."""

    @property
    def si(self) -> float:
        return units.parse_flop_per_s(self.text)


class PowerFigure(Figure):
    """si in watts."""

    @property
    def si(self) -> float:
        return units.parse_watts(self.text)


class SecondsFigure(Figure):
    """si in seconds."""

    @property
    def si(self) -> float:
        return units.parse_seconds(self.text)


class HertzFigure(Figure):
    """si in cycles/s."""

    @property
    def si(self) -> float:
        return units.parse_hertz(self.text)


class CountFigure(Figure):
    """si is a whole number."""

    @property
    def si(self) -> float:
        return units.parse_count(self.text)

    @property
    def count(self) -> int:
        """The value as int."""
        return units.parse_count(self.text)


def _parse_ratio(text: object) -> float:
    try:
        value = float(str(text))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise UnitError(f"cannot read {text!r} as a ratio; write a number above 0, like '1.31'")
    return value


class RatioFigure(Figure):
    """si is a plain number above 0."""

    @property
    def si(self) -> float:
        return _parse_ratio(self.text)


class _NoDuplicates(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (PyYAML would keep the last in silence)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


Model = TypeVar("Model", bound=BaseModel)


def load_yaml(path: Path, model: type[Model]) -> Model:
    """Read one data file and validate it.

    Errors: InputError naming the file, the key or line, and what is expected, on one line.
    """
    needed = ", ".join(name for name, field in model.model_fields.items() if field.is_required())
    text = read_text(path, f"a YAML file with {needed}")
    try:
        raw = yaml.load(text, _NoDuplicates)
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not valid YAML{yaml_fault(error)}; correct it there") from error
    if not isinstance(raw, dict):
        kind = (
            "a list" if isinstance(raw, list) else "plain text" if isinstance(raw, str) else "a single value"
        )
        raise InputError(f"{path} holds {kind} where a mapping with {needed} is needed")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{path}: {_faults(error, model, raw)}") from error


def yaml_fault(error: Exception) -> str:
    """Where and why text is no YAML: `, line 2, column 1: found character that cannot start any token`."""
    if isinstance(error, RecursionError):
        return ": it is nested too deeply"
    if not isinstance(error, yaml.MarkedYAMLError):
        return f": {' '.join(str(error).split())[:80]}" if isinstance(error, ValueError) else ""
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    problem = " ".join((error.problem or "").split())[:120]
    return f"{where}: {problem}" if problem else where


def _faults(error: ValidationError, model: type[BaseModel], raw: object) -> str:
    """All that is wrong with a mapping, in words of a file: missing keys, unknown ones with those allowed, values."""
    missing: dict[tuple[str, ...], list[str]] = {}
    unknown: dict[tuple[str, ...], list[str]] = {}
    wrong: dict[str, list[str]] = {}  # what to say of a value, and what may stand there
    faults = error.errors(include_url=False)
    for fault in faults:
        if fault["type"] == "too_short" and any(_within(other["loc"], fault["loc"]) for other in faults):
            continue  # pydantic counts only the good ones of a list; what is wrong with the others is said
        *outer, last = fault["loc"] or ("",)
        place = _in_file(raw, outer)
        if fault["type"] == "missing":
            missing.setdefault(place, []).append(str(last))
        elif fault["type"] == "extra_forbidden":
            unknown.setdefault(place, []).append(str(last))
        elif last == "[key]":
            where = ".".join(place[:-1]) or "top level"
            wrong.setdefault(f"{where} has the key {shown(fault['input'])}", []).append(_reason(fault, None))
        elif (rule := str(fault["msg"]).removeprefix("Value error, ")) != fault["msg"]:
            wrong[_at(_in_file(raw, [*outer, last])) + " ".join(rule.split())] = []
        else:
            place = _in_file(raw, [*outer, last])
            where = ".".join(place) or "the file"
            told = _reason(fault, _part(model, list(place)))
            wrong.setdefault(f"{where} is {shown(fault['input'])}", []).append(told)
    lines = [f"{_at(place)}{_keys(keys)} missing" for place, keys in missing.items()]
    lines += [
        f"{_at(place)}{_keys([shown(k) for k in keys])} not known; allowed: {_allowed(model, place)}"
        for place, keys in unknown.items()
    ]
    lines += [
        f"{what}; expected {' or '.join(dict.fromkeys(told))}" if told else what
        for what, told in wrong.items()
    ]
    more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more


def _within(inner: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _in_file(raw: Any, steps: list[Any]) -> tuple[str, ...]:
    """The steps that are keys or places of the file; pydantic adds the kinds of a union that it tried."""
    found: list[str] = []
    for step in steps:
        if (isinstance(raw, Mapping) and step in raw) or (isinstance(raw, list) and isinstance(step, int)):
            raw = raw[step]
            found.append(str(step))
    return tuple(found)


def _reason(fault: Any, wanted: Any) -> str:
    """What should stand there; `wanted` is the data model of it, where it is one."""
    if fault["type"] in ("too_short", "too_long"):
        limit = fault["ctx"]["min_length" if fault["type"] == "too_short" else "max_length"]
        return f"{'at least' if fault['type'] == 'too_short' else 'at most'} {limit} of them"
    reason = " ".join(str(fault["msg"]).split()).removeprefix("Input should be ").removeprefix("a valid ")
    if "instance of" in reason and wanted is not None:
        needed = [name for name, field in wanted.model_fields.items() if field.is_required()]
        return f"a mapping with {', '.join(needed)}" if needed else "a mapping"
    return _WORDS.get(reason, reason)


# What pydantic calls kinds of values, in words of YAML.
_WORDS = {
    "dictionary": "a mapping",
    "tuple": "a list",
    "list": "a list",
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "finite number": "a finite number",
}


def _at(place: tuple[str, ...]) -> str:
    return f"{'.'.join(place)}: " if place else ""


def _keys(names: list[str]) -> str:
    """`the key a is`, `the keys a, b and c are`; the first eight."""
    if len(names) == 1:
        return f"the key {names[0]} is"
    if len(names) > 8:
        return f"the keys {', '.join(names[:8])} and {len(names) - 8} more are"
    return f"the keys {', '.join(names[:-1])} and {names[-1]} are"


def _allowed(model: Any, place: tuple[str, ...]) -> str:
    """Keys of the part of a data model that a place in its file holds."""
    at = _part(model, list(place))
    return ", ".join(at.model_fields) if at is not None else "see the files that ship with the package"


def _part(kind: Any, place: list[str]) -> Any:
    """The model under a path of keys; numbers and free keys step into what lists and mappings hold."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not place:
            return kind
        field = kind.model_fields.get(place[0])
        return None if field is None else _part(field.annotation, place[1:])
    origin, inner = get_origin(kind), [a for a in get_args(kind) if a not in (Ellipsis, NoneType)]
    if origin in (dict, Mapping):
        return _part(inner[1], place[1:]) if place else None
    if origin in (tuple, list):
        return _part(inner[0], place[1:]) if place else None
    found = (_part(option, place) for option in inner if not isinstance(option, str))
    return next((part for part in found if part is not None), None)
