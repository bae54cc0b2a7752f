"""Step times of a user's own runs, as a CSV table, and the efficiency file that they calibrate.

One run a line, with the columns of COLUMNS in any order: what `estimate` takes, and what was measured. Runs of one
program: numbers of several chips move together, as programs differ more than chips of one cluster do.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from meshwright.costmodel.doors import ModelSource
from meshwright.costmodel.estimate import complete, digits, seconds_of
from meshwright.costmodel.layout import Layout, parse_layout
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training, parse_batch
from meshwright.hardware.calibration import Efficiency, EfficiencyFile
from meshwright.hardware.errors import InputError, MeshwrightError, UnknownNameError, shown
from meshwright.optimizer.calibrate_runs import PRIORS, Fitted, fit_runs, scaled
from meshwright.optimizer.files import check_output, replacing
from meshwright.optimizer.plan import SCHEMA_VERSION
from meshwright.optimizer.question import resolve

NEEDED = ("model", "cluster", "batch", "seq", "layout")
MEASURED = ("step_s", "tokens_per_s")  # one of them
OPTIONAL = ("dtype", "trainable", "mtp", "moe_imbalance", "framework", "launcher", "name")
COLUMNS = (*NEEDED, *MEASURED, *OPTIONAL)
MOST_BYTES, MOST_RUNS = 2**22, 2_000
TOLD = 0.8  # a number whose spread is above this share of its prior's was not told by the runs
_BASE = "default"
_NUMBERS = {
    "launch": ("launch_s", "moe_launch_s"),
    "elementwise": ("elementwise", "permute"),
}


@dataclass(frozen=True)
class MeasuredRun:
    """One line: a priced layout with its measured step seconds."""

    line: int
    setting: Setting
    layout: Layout
    step_s: float

    def predicted_s(self, efficiency: Efficiency) -> float:
        """Step seconds by the cost model at these rates."""
        return seconds_of(replace(self.setting, efficiency=efficiency), self.layout)


@dataclass(frozen=True)
class RunsCalibration:
    """What runs tell of the chips that they ran on.

    Attributes: numbers: by chip, of the file to write. fitted: factors over the shipped numbers, for all chips.
    """

    table: str
    runs: int
    software: str
    fitted: Fitted
    numbers: dict[str, dict[str, float]]

    @property
    def told(self) -> tuple[str, ...]:
        """Numbers that the runs narrowed."""
        return tuple(n for n, spread in self.fitted.spreads.items() if spread < TOLD * PRIORS[n])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        rounded = {chip: {n: digits(v) for n, v in of.items()} for chip, of in self.numbers.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "table": self.table,
            "runs": self.runs,
            "software": self.software,
            "factors": {n: digits(v) for n, v in self.fitted.factors.items()},
            "spreads": {n: digits(v) for n, v in self.fitted.spreads.items()},
            "told": list(self.told),
            "error_before": digits(self.fitted.before),
            "error_after": digits(self.fitted.after),
            "chips": rounded,
        }

    def to_yaml(self, name: str) -> str:
        """An efficiency file of that name."""
        fitted = self.fitted
        source = f"meshwright calibrate {Path(self.table).name}: {self.runs} runs of {self.software}"
        head = yaml.safe_dump(
            {"name": name, "provenance": source, "extends": _BASE}, sort_keys=False, width=1000
        )
        lines = [
            f"# Mean error over its {self.runs} runs: {fitted.before:.1%} before, {fitted.after:.1%} after. Numbers stay near",
            f"# those of {_BASE} unless the runs say otherwise; those not listed were not told.",
            *head.splitlines(),
            "chips:",
        ]
        for chip, numbers in self.numbers.items():
            lines += [f"  {chip}:", *(f"    {n}: {v:.4g}" for n, v in numbers.items())]
        return "\n".join(lines) + "\n"


def calibrate_runs(
    table: str | PathLike[str], *, model: ModelSource | None = None, efficiency: str = _BASE
) -> RunsCalibration:
    """The numbers of the calibration that bring predictions nearest to a table of step times.

    Args:
        model: of all runs, where the table has no column for it.

    Errors: InputError, with the line, for what does not read, is no legal layout, or mixes programs.
    """
    path = fspath(table)
    runs = [_run(path, n, row, model, efficiency) for n, row in _rows(path, model)]
    software = sorted({run.setting.framework.software for run in runs})
    if len(software) > 1:
        raise InputError(
            f"{path} has runs of {len(software)} programs ({', '.join(software)}), whose rates differ; give one table each"
        )
    fitted = fit_runs([(run, run.setting.efficiency) for run in runs])
    made = RunsCalibration(path, len(runs), software[0], fitted, {})
    moved = {n: f for n, f in fitted.factors.items() if n in made.told}
    chips = {run.setting.cluster.chip.name: run.setting.efficiency for run in runs}
    for chip, base in sorted(chips.items()):
        new = scaled(base, moved)
        made.numbers[chip] = {n: getattr(new, n) for name in moved for n in _NUMBERS.get(name, (name,))}
    if not moved:
        raise InputError(
            f"{path}: its {len(runs)} runs tell no number of the calibration; give runs that differ in sequence length, chips "
            "or layout"
        )
    return made


def save_runs_calibration(made: RunsCalibration, path: str) -> None:
    """Writes the efficiency file, whole or not at all; checked as `--efficiency` will check it."""
    text = made.to_yaml(Path(path).stem)
    EfficiencyFile.model_validate(yaml.safe_load(text))
    check_output(path)
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def _rows(path: str, model: ModelSource | None) -> list[tuple[int, dict[str, str]]]:
    """Lines of the table with their numbers."""
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is over {MOST_BYTES // 2**20} MiB; give at most {MOST_RUNS:,} runs")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = [name.strip() for name in reader.fieldnames or ()]
    for name in columns:
        if name not in COLUMNS:
            raise UnknownNameError("column", name, COLUMNS, f"of {path}")
    missing = [n for n in NEEDED if n not in columns and not (n == "model" and model is not None)]
    if missing or not set(MEASURED) & set(columns):
        raise InputError(
            f"{path} has no column {', '.join(missing) or ' or '.join(MEASURED)}; its first line must name "
            f"{', '.join(NEEDED)} and {' or '.join(MEASURED)}"
        )
    reader.fieldnames = columns
    rows = [(reader.line_num, row) for row in reader]
    if not 1 <= len(rows) <= MOST_RUNS:
        raise InputError(f"{path} has {len(rows):,} runs; give 1 to {MOST_RUNS:,}")
    return rows


def _run(
    path: str, line: int, row: Mapping[Any, Any], model: ModelSource | None, efficiency: str
) -> MeasuredRun:
    try:
        if None in row or None in row.values():
            raise InputError("has more or fewer fields than the first line has names")
        given = {str(k): str(v).strip() for k, v in row.items()}
        seq = _whole(given, "seq")
        tokens, _ = parse_batch(given["batch"], seq)
        training = Training(
            tokens,
            seq,
            compute_dtype=given.get("dtype") or "bf16",  # type: ignore[arg-type]
            trainable=given.get("trainable") or "all",
            mtp=_whole(given, "mtp") if given.get("mtp") else 0,
            moe_imbalance=_number(given, "moe_imbalance") if given.get("moe_imbalance") else 1.0,
        )
        setting = resolve(
            given["model"] if model is None else model,
            given["cluster"],
            training,
            efficiency=efficiency,
            framework=given.get("framework") or None,
            launcher=given.get("launcher") or None,
        )
        layout = complete(setting, parse_layout(given["layout"]))
        return MeasuredRun(line, setting, layout, _step_s(given, tokens))
    except MeshwrightError as error:
        raise InputError(f"{path}, line {line}: {error}") from None


def _step_s(given: Mapping[str, str], tokens: int) -> float:
    named = [name for name in MEASURED if given.get(name)]
    if len(named) != 1:
        raise InputError(
            f"gives {' and '.join(named) or 'neither step_s nor tokens_per_s'}; give one of them"
        )
    value = _number(given, named[0])
    return value if named[0] == "step_s" else tokens / value


def _number(given: Mapping[str, str], name: str) -> float:
    try:
        value = float(given[name])
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value > 0):
        raise InputError(f"{name} is {shown(given[name])}; give a number above 0")
    return value


def _whole(given: Mapping[str, str], name: str) -> int:
    if not (given[name].isascii() and given[name].isdigit()) or len(given[name]) > 9:
        raise InputError(f"{name} is {shown(given[name])}; give a whole number")
    return int(given[name])
