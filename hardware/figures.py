"""A figure is a value with its unit, where it comes from and how far to trust it."""

from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from meshwright.hardware import units
from meshwright.hardware.errors import InputError, UnitError, shown
from meshwright.hardware.files import read_text

DATA = Path(__file__).parent / "data"
Confidence = Literal["vendor", "secondary", "derived"]


class Strict(BaseModel):
    """Base of all data models: nothing unknown gets in, nothing changes later."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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

    Errors: InputError naming the file, the field and the reason, on one line.
    """
    needed = ", ".join(name for name, field in model.model_fields.items() if field.is_required())
    text = read_text(path, f"a YAML file with {needed}")
    try:
        raw = yaml.load(text, _NoDuplicates)
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path} holds {shown(raw)} where a mapping with {needed} is needed")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise InputError(f"{path}: {where}: {first['msg']}{more}") from error
