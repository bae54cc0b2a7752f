"""Rows of published runs: read without guesses, each wrong value refused by name, assigned by what they say."""

import sys
from pathlib import Path

import pytest

from meshwright.hardware.errors import InputError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
pytest.importorskip("scipy")
from training_accuracy.cases import Case, case_of, read_cases, read_rows
from training_accuracy.remat import remat_of
from training_accuracy.shipped import RUNS, load, without_bad
from training_accuracy.software import software_of, source_of

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
