"""Step times of a user's own runs, as a CSV table, and the efficiency file that they calibrate.

One run a line, with the columns of COLUMNS in any order: what `estimate` takes, and what was measured. Runs of one
program and launcher; each chip is fitted by its own runs.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from meshwright.costmodel.doors import ModelSource
from meshwright.costmodel.estimate import complete, digits, seconds_of
from meshwright.costmodel.estimate import estimate as priced
from meshwright.costmodel.layout import Layout, parse_layout
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training, parse_batch
from meshwright.hardware.calibration import Efficiency, EfficiencyFile
from meshwright.hardware.errors import InputError, MeshwrightError, UnknownNameError, shown
from meshwright.optimizer.calibrate_runs import Fitted, fit_runs, scaled
from meshwright.optimizer.files import check_output, replacing
from meshwright.optimizer.plan import SCHEMA_VERSION
from meshwright.optimizer.question import resolve

NEEDED = ("model", "cluster", "batch", "seq", "layout")
MEASURED = ("step_s", "tokens_per_s")  # one of them
OPTIONAL = ("dtype", "trainable", "mtp", "moe_imbalance", "framework", "launcher", "name")
COLUMNS = (*NEEDED, *MEASURED, *OPTIONAL)
MOST_BYTES, MOST_RUNS = 2**22, 2_000
_LEAST_S, _MOST_S = 1e-6, 1e7  # of a step that somebody waited for
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

    Attributes:
        fitted: by chip, factors over the shipped numbers. numbers: by chip, of the file to write.
        runs: by chip. too_large: runs that do not fit memory as the program holds it, whose layout may be another.
    """

    table: str
    software: str
    runs: dict[str, int]
    fitted: dict[str, Fitted]
    numbers: dict[str, dict[str, float]]
    too_large: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        chips = {
            chip: {
                "runs": self.runs[chip],
                "factors": {n: digits(v) for n, v in fitted.factors.items()},
                "spreads": {n: digits(v) for n, v in fitted.spreads.items()},
                "told": list(fitted.told),
                "error_before": digits(fitted.before),
                "error_after": digits(fitted.after),
                "numbers": {n: digits(v) for n, v in self.numbers[chip].items()},
            }
            for chip, fitted in self.fitted.items()
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "table": self.table,
            "software": self.software,
            "too_large": self.too_large,
            "chips": chips,
        }

    def to_yaml(self, name: str) -> str:
        """An efficiency file of that name."""
        source = (
            f"meshwright calibrate {Path(self.table).name}: {sum(self.runs.values())} runs of {self.software}"
        )
        head = yaml.safe_dump(
            {"name": name, "provenance": source, "extends": _BASE}, sort_keys=False, width=1000
        )
        lines = [
            f"# Numbers that step times tell; those not listed stay as in {_BASE}.",
            *head.splitlines(),
            "chips:",
        ]
        for chip, numbers in self.numbers.items():
            fitted = self.fitted[chip]
            error = f"mean error {fitted.before:.1%} before, {fitted.after:.1%} after"
            lines.append(f"  {chip}:  # {self.runs[chip]} runs; {error}")
            lines += [f"    {n}: {v:.6g}" for n, v in numbers.items()]
        return "\n".join(lines) + "\n"


def calibrate_runs(
    table: str | PathLike[str], *, model: ModelSource | None = None, efficiency: str = _BASE
) -> RunsCalibration:
    """The numbers of the calibration that bring predictions nearest to a table of step times, chip by chip.

    Args:
        model: of all runs, where the table has no column for it.

    Errors: InputError, with the line, for what does not read, is no legal layout, or mixes programs.
    """
    path = fspath(table)
    runs = [_run(path, n, row, model, efficiency) for n, row in _rows(path, model)]
    programs = sorted({(run.setting.framework.software, run.setting.launcher) for run in runs})
    if len(programs) > 1:
        told = ", ".join(f"{software} under {launcher}" for software, launcher in programs)
        raise InputError(
            f"{path} has runs of {len(programs)} programs ({told}), whose rates differ; give one table each"
        )
    fitted, numbers, count = {}, {}, {}
    for chip in sorted({run.setting.cluster.chip.name for run in runs}):
        mine = [run for run in runs if run.setting.cluster.chip.name == chip]
        fitted[chip] = fit_runs([(run, run.setting.efficiency) for run in mine])
        new = scaled(mine[0].setting.efficiency, {n: fitted[chip].factors[n] for n in fitted[chip].told})
        numbers[chip] = {
            n: getattr(new, n) for name in fitted[chip].told for n in _NUMBERS.get(name, (name,))
        }
        count[chip] = len(mine)
    if silent := [chip for chip, of in numbers.items() if not of]:
        raise InputError(
            f"{path}: runs on {', '.join(silent)} tell no number of the calibration; give some that differ in sequence length, "
            "chips or layout"
        )
    too_large = sum(not priced(run.setting, run.layout).fits for run in runs)
    return RunsCalibration(path, programs[0][0], count, fitted, numbers, too_large)


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
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is no CSV: {error}") from None
    if repeated := [name for name in dict.fromkeys(columns) if columns.count(name) > 1]:
        raise InputError(f"{path} has the column {repeated[0]} twice; keep one")
    for name in columns:
        if name not in COLUMNS:
            raise UnknownNameError("column", name, COLUMNS, f"of {path}")
    missing = [n for n in NEEDED if n not in columns and not (n == "model" and model is not None)]
    if missing or not set(MEASURED) & set(columns):
        raise InputError(
            f"{path} has no column {', '.join(missing) or ' or '.join(MEASURED)}; its first line must name "
            f"{', '.join(NEEDED)} and {' or '.join(MEASURED)}"
        )
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
    seconds = value if named[0] == "step_s" else tokens / value
    if not _LEAST_S <= seconds <= _MOST_S:
        raise InputError(f"its step takes {seconds:.4g} s; give one of {_LEAST_S:g} to {_MOST_S:g} s")
    return seconds


def _number(given: Mapping[str, str], name: str) -> float:
    text = given[name]
    value = (
        float(text)
        if re.fullmatch(r"[\d.]+([eE][+-]?\d+)?", text, re.ASCII) and text.count(".") < 2
        else -1.0
    )
    if not (isfinite(value) and value > 0):
        raise InputError(f"{name} is {shown(given[name])}; give a number above 0")
    return value


def _whole(given: Mapping[str, str], name: str) -> int:
    if not (given[name].isascii() and given[name].isdigit()) or len(given[name]) > 9:
        raise InputError(f"{name} is {shown(given[name])}; give a whole number from 0 to 999999999")
    return int(given[name])
