"""Published training runs: read without guesses, predicted by fits that did not see them, judged and calibrated."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.chip import load_chip
from meshwright.hardware.errors import InputError
from meshwright.optimizer.calibrate_runs import PRIORS, fit_runs, scaled

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
pytest.importorskip("scipy")
import accuracy
from training_accuracy import calibrated
from training_accuracy.cases import Case, read_cases, read_rows
from training_accuracy.fitting import Rates, solve
from training_accuracy.folds import KEYS
from training_accuracy.judge import SPLITS, judge, predict, summary
from training_accuracy.parameters import PARAMETERS, file_of
from training_accuracy.score import errors, ranked
from training_accuracy.shipped import CALIBRATION, RUNS, fixed, load, without_bad
from training_accuracy.written import _band


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return read_rows(RUNS)


@pytest.fixture(scope="module")
def cases(rows: list[dict]) -> list[Case]:
    return without_bad(read_cases(rows)[0])[0]


def test_no_fit_predicts_a_group_that_it_saw(cases: list[Case]) -> None:
    fits = load()
    for split in SPLITS:
        left_out = [key for keys, _ in fits.folds[split] for key in keys]
        assert sorted(left_out) == sorted({KEYS[split](c) for c in cases}), "each group once, none forgotten"


def test_the_shipped_calibration_is_what_the_fit_wrote() -> None:
    written = yaml.safe_load((CALIBRATION / "default.yaml").read_text())
    made = file_of(load().full.x, fixed())
    for part in ("common", "families", "architectures", "chips"):
        _same(written[part], getattr(made, part), part)
    for name, program in made.software.items():
        _same(written["software"][name], program, name)


def _same(written: object, made: object, path: str) -> None:
    for key, value in written.items() if isinstance(written, dict) else ():
        there = made[key] if isinstance(made, dict) else getattr(made, key)
        if isinstance(value, dict):
            _same(value, there, f"{path}.{key}")
        else:
            assert value == (pytest.approx(there, rel=1e-3) if isinstance(value, float) else there), (
                f"{path}.{key}"
            )


def test_every_fitted_number_says_how_well_the_data_tell_it() -> None:
    text = (CALIBRATION / "default.yaml").read_text()
    assert text.count("# fit, x/÷") + text.count("# prior") == len(
        {p.path for p in PARAMETERS if p.of != "attention"}
    )


def test_judged_rows_meet_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole judge on every 25th of the shipped rows; its figures are means over those rows."""
    monkeypatch.setattr(calibrated, "DRAWS", 1)  # of twenty
    kept = read_rows(RUNS)[::25]
    path = tmp_path / "runs.yaml.gz"
    path.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))
    done = judge(path)
    found = summary(done)
    assert found["rows"] == len(kept)
    assert found["priced"] + found["bad_rows"] + sum(found["refused"].values()) == len(kept)
    for split in SPLITS:
        of = found[split]
        assert of["all"]["mape"] == pytest.approx(
            np.abs(done.seconds[split] / done.measured - 1).mean(), rel=1e-3
        )
        assert of["all"]["mape"] < 0.6 * of["flat"]["mape"]
        for labels in of["classes"].values():
            assert sum(e["rows"] for e in labels.values()) == len(done.cases)


def test_a_run_of_an_unknown_source_is_predicted_by_the_shipped_numbers(cases: list[Case]) -> None:
    case = next(c for c in cases if c.id.startswith("lf-h100"))
    other = replace(case, source="somebody")
    rates = Rates(load().full.x, fixed())
    assert predict([other], "source", load(), fixed())[0] == pytest.approx(rates.predicted_s(other))
    shipped = load_efficiency("default", load_chip("h100"), "llm-foundry")
    assert other.predicted_s(shipped) == pytest.approx(rates.predicted_s(other), rel=2e-3)


@pytest.mark.parametrize("given", ["none", "one refused", "one", "two of one batch"])
@pytest.mark.filterwarnings("error")
def test_a_small_file_is_judged_without_warnings_and_without_nan(
    rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, given: str
) -> None:
    row = next(r for r in rows if r["id"].startswith("lf-h100"))
    kept = {
        "none": [],
        "one refused": [{**row, "remat": 3}],
        "one": [row],
        "two of one batch": [row, {**row, "id": "b", "source": "us", "micro_batch": 4}],
    }[given]
    path, page = tmp_path / "runs.yaml", tmp_path / "page.md"
    path.write_text(json.dumps(kept))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "training", str(path), "--page", str(page)])
    assert accuracy.main() == 0
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    found = json.loads(last, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    priced = 0 if given in ("none", "one refused") else len(kept)
    assert lines[0].startswith(f"{len(kept)} rows: {priced} priced")
    assert found["priced"] == found["family"]["all"]["rows"] == priced
    assert found["drawn_three_mape"] is None
    assert not err
    assert "nan" not in page.read_text()
    assert ("row: remat is 3; expected a text" in out) == (given == "one refused")


def test_ranking_by_hand(cases: list[Case]) -> None:
    group = [c for c in cases if c.id.startswith("vtrain-3-6b")]
    three = []
    for case in group:
        if case.group == group[0].group and all(case.config != c.config for c in three):
            three.append(case)
    three = [replace(c, step_s=s) for c, s in zip(three[:3], (2.0, 1.0, 3.0), strict=True)]
    found = ranked(three, np.array([1.0, 2.0, 3.0]))
    assert [(g.regret, g.best_of_three, g.top_1) for g in found] == [(1.0, 0.0, False)]
    assert ranked(three, np.array([2.0, 1.0, 3.0]))[0].regret == 0.0
    assert ranked(three[:2], np.array([1.0, 2.0])) == [], "two layouts are no ranking"


def test_errors_by_hand() -> None:
    found = errors(np.array([1.09, 0.81]), np.array([1.0, 1.0]))
    assert (found["mape"], found["within_10"], found["within_20"]) == (pytest.approx(0.14), 0.5, 1.0)
    assert found["bias"] == pytest.approx(np.sqrt(1.09 * 0.81) - 1, rel=1e-3)


def test_a_linear_fit_gives_its_parameters_back() -> None:
    rng = np.random.default_rng(7)
    n, count = len(PARAMETERS), 2
    slopes = rng.normal(size=(600, n))
    true = rng.uniform(-0.2, 0.0, n)
    measured = slopes @ true
    found = solve(
        np.zeros(600), slopes, np.zeros(n), measured, np.ones(600), np.arange(600) % count, ("a", "b")
    )
    assert np.abs(found.x - true).max() < 0.02


class Known:
    """A run whose time comes from known rates."""

    def __init__(self, case: Case, factors: dict[str, float]) -> None:
        self.case = case
        self.base = load_efficiency("default", case.setting.cluster.chip, case.software)
        self.step_s = case.predicted_s(scaled(self.base, factors))

    def predicted_s(self, efficiency: object) -> float:
        return self.case.predicted_s(efficiency)


def test_calibrate_finds_the_rates_that_made_the_times(cases: list[Case]) -> None:
    foundry = [c for c in cases if c.id.startswith("lf-h100") and c.setting.cluster.devices == 8]
    foundry.sort(key=lambda c: c.row["model"]["seq"])
    runs = [
        Known(c, {"matmul": 0.85, "attention": 1.3})
        for c in (foundry[0], foundry[len(foundry) // 2], foundry[-1])
    ]
    found = fit_runs([(r, r.base) for r in runs])
    assert found.factors["matmul"] == pytest.approx(0.85, rel=0.05)
    assert found.factors["attention"] == pytest.approx(1.3, rel=0.12)
    assert found.after < 0.02 < found.before
    assert all(found.spreads[n] <= PRIORS[n] * (1 + 1e-9) for n in PRIORS)
    same = fit_runs([(Known(c, {}), Known(c, {}).base) for c in foundry[:2]])
    assert all(f == pytest.approx(1.0, abs=1e-6) for f in same.factors.values())


def test_calibrate_refuses_no_runs_and_no_times(cases: list[Case]) -> None:
    with pytest.raises(InputError, match="no runs"):
        fit_runs([])
    run = Known(cases[0], {})
    run.step_s = float("nan")
    with pytest.raises(InputError, match="not a number of seconds"):
        fit_runs([(run, run.base)])


def test_three_runs_are_chosen_before_any_time_is_read(cases: list[Case]) -> None:
    of = [c for c in cases if c.source == "llm-foundry"]
    chosen = calibrated.by_rule(of)
    assert chosen == calibrated.by_rule([replace(c, step_s=1.0) for c in of])
    seq = [c.row["model"]["seq"] for c in of]
    assert (seq[chosen[0]], seq[chosen[1]]) == (min(seq), max(seq))
    assert of[chosen[2]].row["hardware"]["chips"] == max(c.row["hardware"]["chips"] for c in of)


def test_the_command_refuses_what_is_no_list_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    path = tmp_path / "runs.yaml"
    for text in ("{}", "- 1", "- {id: x}", "a: [", "\x00"):
        path.write_text(text)
        monkeypatch.setattr(sys, "argv", ["accuracy.py", "training", str(path)])
        assert accuracy.main() == 2
        assert str(path) in capsys.readouterr().err


def test_a_band_always_holds_the_estimate() -> None:
    assert _band((1.02, 1.3)) == [1.0, 1.3]
    assert _band((0.8, 0.97)) == [0.8, 1.0]
