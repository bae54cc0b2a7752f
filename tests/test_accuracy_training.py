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
from training_accuracy.cases import Case, case_of, read_cases, read_rows
from training_accuracy.fitting import Rates, solve
from training_accuracy.folds import KEYS
from training_accuracy.judge import SPLITS, judge, predict, summary
from training_accuracy.parameters import PARAMETERS, file_of
from training_accuracy.remat import remat_of
from training_accuracy.score import errors, ranked
from training_accuracy.shipped import CALIBRATION, RUNS, fixed, load, without_bad
from training_accuracy.software import software_of, source_of
from training_accuracy.written import _band

# Every spelling of the shipped rows, and what backward makes again of a dense layer.
SPELLINGS = 38


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return read_rows(RUNS)


@pytest.fixture(scope="module")
def cases(rows: list[dict]) -> list[Case]:
    return without_bad(read_cases(rows)[0])[0]


def test_every_spelling_of_recompute_is_known(rows: list[dict]) -> None:
    spellings = {r["remat"] for r in rows if r.get("remat") is not None}
    assert len(spellings) == SPELLINGS
    words = {text: remat_of(text) for text in spellings}
    assert words["full"].dropped > words["selective:mlp"].dropped
    assert words["selective: core_attn, layernorm"].dropped == {"core", "norm1", "norm2"}
    assert words["selective: mlp"].dense == {"up", "act"}
    assert not words["none"].dropped
    host = words["custom: keep [], offload [decoder_layer_input, out_proj], rest recomputed"]
    assert host.host == {"input", "out"}
    assert not host.dropped & host.host


@pytest.mark.parametrize(
    "text",
    [
        "selective:everything",
        "custom: keep [wq]",
        "custom: keep [wq], offload [], rest recomputed",
        "fulll",
        "",
    ],
)
def test_an_unknown_spelling_is_refused_and_never_taken_for_none(text: str) -> None:
    with pytest.raises(InputError, match="no entry for"):
        remat_of(text)


def test_of_stated_rows_at_least_95_percent_are_priced(rows: list[dict]) -> None:
    stated = [r for r in rows if _is_stated(r)]
    priced, refused = read_cases(stated)
    assert len(stated) > 500
    assert len(priced) >= 0.95 * len(stated), [r.text for r in refused]


def _is_stated(row: dict) -> bool:
    """What the project counts as stated: shape with heads, dtype, micro-batch, remat, ZeRO, tp, pp, time, ep of a mixture."""
    model, layout = row["model"], row["layout"]
    shape = all(model.get(k) is not None for k in ("layers", "hidden", "ffn", "heads", "vocab", "mlp_type"))
    times = (
        row["measured"].get("step_time_s"),
        row.get("derived_step_time_s"),
        row.get("step_time_from_rate_s"),
    )
    given = all(layout.get(k) is not None for k in ("zero_stage", "tp", "pp"))
    experts = layout.get("ep") is not None or not model.get("experts")
    told = all(row.get(k) is not None for k in ("dtype", "micro_batch", "remat"))
    return shape and any(t is not None for t in times) and given and experts and told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dtype": None}, "dtype: not stated"),
        ({"dtype": "int3"}, "dtype: no entry"),
        ({"remat": "some"}, "remat: no entry"),
        ({"measured": {}, "derived_step_time_s": None}, "no time"),
        ({"offload": "everything"}, "offload"),
    ],
)
def test_a_row_that_does_not_say_is_refused(rows: list[dict], change: dict, told: str) -> None:
    row = next(r for r in rows if r["id"].startswith("lf-h100"))
    case_of(row)
    with pytest.raises(InputError, match=told):
        case_of({**row, **change})


def test_what_a_row_does_not_say_is_told(cases: list[Case]) -> None:
    by_id = {c.id: c for c in cases}
    one = next(c for i, c in by_id.items() if i.startswith("vtrain-"))
    assert one.assumed == ("dtype fp16", "ZeRO 1")
    assert one.setting.training.compute_dtype == "fp16"
    assert one.layout.zero == 1 or one.layout.dp == 1
    assert next(c for i, c in by_id.items() if i.startswith("lf-")).assumed == ()


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


def test_judged_rows_meet_what_the_page_says(tmp_path: Path) -> None:
    """The whole judge on a seeded tenth of the shipped rows; its figures are means over those rows."""
    kept = read_rows(RUNS)[::10]
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


def _put(row: dict, path: str, value: object) -> dict:
    """A copy of a row with one value replaced, by a path of keys."""
    first, _, rest = path.partition(".")
    return {**row, first: _put(row[first], rest, value) if rest else value}


WRONG = {
    "id": (5, None),
    "remat": (3, True),
    "note": (5,),
    "offload": (5,),
    "dtype": (7,),
    "software": (None, 7),
    "source": (7,),
    "model": (None, []),
    "layout": (None, []),
    "measured": ("x",),
    "global_batch": (None, 0, "512"),
    "micro_batch": (0, True),
    "hardware.chip": (None, 3),
    "hardware.chips": (0, -8, "eight", None, True, 10**12),
    "hardware.nvlink_domain": (3,),
    "hardware.slices": (3,),
    "model.hidden": ("x", -1),
    "model.heads": (0, 7),
    "model.kv_heads": (5,),
    "model.layers": (float("nan"), 1.5),
    "model.seq": (None, 0),
    "model.mlp_type": ("weird",),
    "model.experts": (8,),
    "layout.xp": (2,),
    "layout.tp": (0, 1.5),
    "layout.zero_stage": (4,),
    "measured.step_time_s": ("fast", [1], -1, 0, float("nan"), float("inf"), True, 1e-300, 1e300),
    "measured.tokens_per_s_per_chip": (0, -1.0, float("inf"), "x"),
    "derived_step_time_s": (-1.0, float("nan")),
}


@pytest.mark.parametrize("path", WRONG)
def test_one_wrong_value_is_one_refusal_that_names_it(rows: list[dict], path: str) -> None:
    good = next(r for r in rows if r["id"].startswith("lf-h100"))
    bad = [_put(good, path, value) for value in WRONG[path]]
    priced, refused = read_cases([good, *bad, good])
    assert len(priced) == 2, "rows beside it are priced"
    assert len(refused) == len(bad)
    for one in refused:
        assert one.text.startswith("row: "), one.text
        assert path.split(".")[-1] in one.text
        assert "\n" not in one.text


@pytest.mark.parametrize(
    ("start", "change", "told"),
    [
        ("lf-h100", {"layout.tp": 128, "layout.dp": 4, "layout.fsdp": 4}, "layout: tp=128 does not fit"),
        ("lf-h100", {"layout.tp": 2}, "layout: 1024 devices, the cluster has 512"),
        ("lf-h100", {"layout.ep": 8}, "layout: ep 8 of a model without experts"),
        ("lf-h100", {"offload": "activations of x layers to host"}, "offload: "),
        ("lf-h100", {"measured.step_time_s": 1e-4}, "step time: 0.0001 s is less than"),
        ("mb-26-06-deepseekv3", {"layout.ep": 3}, "ep*etp=3 does not divide"),
        ("mb-26-06-deepseekv3", {"model.topk": 1000}, "row: model: topk 1000 is more than"),
    ],
)
def test_what_cannot_be_is_refused(rows: list[dict], start: str, change: dict, told: str) -> None:
    row = next(r for r in rows if r["id"].startswith(start))
    case_of(row)
    for path, value in change.items():
        row = _put(row, path, value)
    with pytest.raises(InputError) as error:
        case_of(row)
    assert str(error.value).startswith(told)


def test_a_rate_alone_tells_the_step(rows: list[dict]) -> None:
    row = next(r for r in rows if r["id"].startswith("lf-h100") and r["hardware"]["chips"] == 512)
    tokens = row["global_batch"] * row["model"]["seq"]
    rate = tokens / 512 / 20.0
    given = {**row, "derived_step_time_s": None, "measured": {"tokens_per_s_per_chip": rate}}
    assert case_of(given).step_s == pytest.approx(20.0)
    with pytest.raises(InputError, match=r"tokens_per_s_per_chip is 1e\+300"):
        case_of({**given, "measured": {"tokens_per_s_per_chip": 1e300}})


def test_source_and_program_do_not_hang_on_the_id(rows: list[dict]) -> None:
    """Of every shipped row, by the same functions under a name that tells nothing; each group has a fold."""
    known = {key for keys, _ in load().folds["source"] for key in keys}
    for row in rows:
        other = {**row, "id": "x"}
        assert (source_of(other), software_of(other)) == (source_of(row), software_of(row))
    priced = read_cases([{**r, "id": f"x{i}"} for i, r in enumerate(rows)])[0]
    assert {c.source for c in priced} == known


@pytest.mark.parametrize(
    ("software", "program"),
    [
        ("torchtitan 0.2", "torch-fsdp"),
        ("Megatron-LM 1.0", "megatron-core"),
        ("Paxos", None),
        ("DeepSpeed 0.17", None),
        ("my MaxText", None),
    ],
)
def test_an_unknown_program_is_refused_and_an_unknown_source_is_its_own(
    rows: list[dict], software: str, program: str | None
) -> None:
    row = next(r for r in rows if r["id"].startswith("lf-h100"))
    row = {**row, "source": "our own cluster", "software": software}
    if program is None:
        with pytest.raises(InputError, match="software: no entry for"):
            case_of(row)
    else:
        case = case_of(row)
        assert (case.source, case.software) == ("our own cluster", program)


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
    found = solve(np.zeros(600), slopes, np.zeros(n), measured, np.ones(600), np.arange(600) % count, count)
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
