"""Prices against the cost model of a whole model, scores and their refusals, the stand-in against its law, files."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from meshwright.costmodel.inference.seconds import memory_bytes, prefill_s, token_s
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import InputError, ModelError, UnknownNameError
from meshwright.search.board import board_of
from meshwright.search.law import load_law
from meshwright.search.law_columns import Columns
from meshwright.search.layers.config import config_of, ffn_mult, layers_of, width_of, write_config
from meshwright.search.layers.limits import parse_limits
from meshwright.search.layers.price import Asked
from meshwright.search.layers.scores import read_scores
from meshwright.search.layers.solve import solve
from meshwright.search.layers.sweep import columns_of, parse_sweep, sweep
from meshwright.search.layers.table import Table, build_table, load_table, save_table
from meshwright.search.layers.variants import AttentionVariant, FfnVariant, Variants

BOARD = board_of("jetson-agx-orin-64gb", efficiency="edge")
ASKED = Asked(batch=2, prompt=512, context=4096, weight_bytes=2, kv_bytes=1)
SIZES = Variants(
    attention=(
        AttentionVariant(name="full"),
        AttentionVariant(name="kv2", kv_heads=2),
        AttentionVariant(name="w1024", window=1024),
        AttentionVariant(name="no_attention", none=True),
    ),
    ffn=(
        FfnVariant(name="whole"),
        FfnVariant(name="half", width=7168),
        FfnVariant(name="moe", experts=8, top_k=2, expert_width=2048),
        FfnVariant(name="no_ffn", none=True),
    ),
)
SEEN = Variants(attention=SIZES.attention[:2], ffn=SIZES.ffn[:3])  # what a law sees


def scores_file(path: Path, variants: Variants, layers: int = 32, seed: int = 0) -> Path:
    r = np.random.default_rng(seed)
    names = [v.name for v in variants.attention] + [v.name for v in variants.ffn]
    rows = [f"{i},{name},{r.uniform(0, 1):.6f}" for i in range(layers) for name in names]
    path.write_text("layer,variant,score\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    given = read_scores(str(scores_file(tmp_path / "s.csv", SIZES)))
    return build_table("llama-3-8b", SIZES, BOARD, ASKED, given)


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-8b", "mixtral-8x7b", "gemma-3-4b-it"])
def test_the_base_costs_what_the_whole_model_costs(name: str) -> None:
    base = Variants(attention=(AttentionVariant(name="a"),), ffn=(FfnVariant(name="f"),))
    problem = build_table(name, base, BOARD, ASKED).problem
    taken = np.zeros((problem.layers, 2), dtype=np.int64)
    model = load_model(name)
    stack = Stack.of(model)
    held = memory_bytes(stack, ASKED.held)
    expected = {
        "prefill_s": float(prefill_s(stack, BOARD.device, ASKED.filled)),
        "decode_s": float(token_s(stack, BOARD.device, ASKED.held)),
        "weight_bytes": float(held["weights"]),
        "kv_bytes": float(held["cache"]),
        "params": float(model.params),
    }
    for total, value in expected.items():
        assert problem.total_of(taken, total) == pytest.approx(value, rel=1e-12), total
    assert problem.total_of(taken, "activation_bytes") >= memory_bytes(stack, ASKED.filled)["activations"]


def test_a_mixed_choice_costs_what_its_own_stack_costs(table: Table) -> None:
    """Any choice without missing parts is a model: the sums of the table are its price."""
    base = load_model("llama-3-8b")
    r = np.random.default_rng(1)
    taken = np.stack([r.integers(0, 3, 32), r.integers(0, 3, 32)], -1)
    kinds = [SIZES.ffn[f].of(SIZES.attention[a].of(base.kinds[0])) for a, f in taken.tolist()]
    stack = Stack(tuple((1, k) for k in kinds), base.hidden, base.embedding, base.head, base.head_matrix)
    problem = table.problem
    assert problem.total_of(taken, "decode_s") == pytest.approx(
        float(token_s(stack, BOARD.device, ASKED.held))
    )
    assert problem.total_of(taken, "prefill_s") == pytest.approx(
        float(prefill_s(stack, BOARD.device, ASKED.filled))
    )
    held = memory_bytes(stack, ASKED.held)
    assert problem.total_of(taken, "weight_bytes") == pytest.approx(float(held["weights"]))
    assert problem.total_of(taken, "kv_bytes") == pytest.approx(float(held["cache"]))
    filled = memory_bytes(stack, ASKED.filled)["activations"]
    assert problem.total_of(taken, "activation_bytes") >= filled


def test_what_is_gone_costs_nothing_and_less_costs_less(table: Table) -> None:
    attention, ffn = table.problem.parts
    assert (attention.cost[:, 3] == 0).all() and (ffn.cost[:, 3] == 0).all()
    decode, kv = table.problem.costs.index("decode_s"), table.problem.costs.index("kv_bytes")
    assert (attention.cost[:, 1, decode] < attention.cost[:, 0, decode]).all()
    assert (attention.cost[:, 1, kv] * 4 == attention.cost[:, 0, kv]).all()
    assert (attention.cost[:, 2, kv] * 4 == attention.cost[:, 0, kv]).all()
    assert (ffn.cost[:, 1, decode] < ffn.cost[:, 0, decode]).all()


def test_the_stand_in_is_the_law_and_says_so() -> None:
    made = build_table("llama-3-8b", SEEN, BOARD, ASKED)
    problem = made.problem
    assert problem.stand_in.startswith("a stand-in, not measured") and "plas-10b" in problem.stand_in
    law = load_law("plas-10b")
    taken = np.ones((32, 2), dtype=np.int64)  # kv2 and half in every layer
    columns = Columns(layers=32, width=4096, ffn_ratio=7168 / 4096, activation=1.0, kv_width=2 * 128)
    terms = law.terms(columns)
    expected = sum(float(v) for name, v in terms.items() if name not in ("depth", "floor"))
    assert problem.score_of(taken) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(
        InputError, match=r"no law here sees windows, so variant w1024 has no stand-in score; give --scores"
    ):
        build_table("llama-3-8b", SIZES, BOARD, ASKED)
    with pytest.raises(InputError, match=r"law besiroglu has no terms of kv width"):
        build_table("llama-3-8b", SEEN, BOARD, ASKED, law="besiroglu")


def test_joint_scores_and_given_costs(tmp_path: Path) -> None:
    linear = Variants(
        attention=(*SIZES.attention[:1], AttentionVariant(name="lin", linear=True)), ffn=SIZES.ffn[:2]
    )
    path = tmp_path / "joint.csv"
    rows = ["layer,attention,ffn,score,prefill_s,decode_s,weight_bytes,kv_bytes,params"]
    rows += [f"*,full,{f},0.{n},,,,," for n, f in enumerate(("whole", "half"), 1)]
    rows += [f"*,lin,{f},0.{n},0.01,0.001,1e8,1e6,5e7" for n, f in enumerate(("whole", "half"), 3)]
    rows += ["3,lin,half,-5,0.02,0.002,1e8,1e6,5e7"]
    path.write_text("\n".join(rows))
    problem = build_table("llama-3-8b", linear, BOARD, ASKED, read_scores(str(path))).problem
    (part,) = problem.parts
    assert part.variants == ("full+whole", "full+half", "lin+whole", "lin+half")
    assert part.score[:, 3].tolist() == [0.4] * 3 + [-5] + [0.4] * 28
    assert part.cost[3, 3].tolist() == [0.02, 0.002, 1e8, 1e6, 5e7, 0]
    up = build_table(
        "llama-3-8b", linear, BOARD, ASKED, read_scores(str(path)), higher_is_better=True
    ).problem
    best = solve(up).best
    assert best.score == pytest.approx(0.4 * 31 + 0.3) and best.variants[3] == ("lin+whole",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "layer,variant,score\n0,full,1",
            r"no score of layer 0, variant kv2, and \d+ more; give it in the scores file",
        ),
        ("layer,variant,score\n0,fool,1", r"unknown variant 'fool'; did you mean full"),
        ("layer,variant,score\n32,full,1", r"layer 32 of a model of 32 layers; they count from 0 to 31"),
        ("layer,variant,score\n0,full,1\n0,full,2", r"line 3 gives layer 0, full a second time; keep one"),
        ("layer,variant,score\n0,full,nan", r"line 2: score is 'nan'; give a finite number"),
        (
            "layer,variant,score,kv_bytes\n0,full,1,-1",
            r"line 2: kv_bytes is '-1'; give a finite number of at least 0",
        ),
        (
            "layer,variant,score\n-1,full,1",
            r"line 2: layer is '-1'; give its number from 0, or \* for every one",
        ),
        ("layer,variant,score\n0,full", r"line 2 has 2 cells and the first line 3; give as many"),
        ("layer,variant\n0,full", r"the first line lacks score"),
        ("layer;variant;score\n0;full;1", r"divides its columns by semicolons; write commas"),
        ("layer,variant,score,mood\n0,full,1,2", r"unknown column 'mood'"),
        ("layer,variant,score,score\n0,full,1,2", r"the first line names a column twice"),
    ],
)
def test_scores_that_are_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        build_table("llama-3-8b", SIZES, BOARD, ASKED, read_scores(str(path)))


def test_variants_that_are_refused(tmp_path: Path) -> None:
    given = read_scores(str(scores_file(tmp_path / "s.csv", SIZES)))
    three = Variants(attention=(AttentionVariant(name="kv3", kv_heads=3),), ffn=SIZES.ffn[:1])
    with pytest.raises(
        InputError, match=r"variant kv3: 32 heads are no multiple of 3 kv heads; give a divisor"
    ):
        build_table("llama-3-8b", three, BOARD, ASKED, given)
    with pytest.raises(InputError, match=r"latent attention, whose cache has no kv heads"):
        build_table("deepseek-v3", SEEN, BOARD, ASKED)
    with pytest.raises(ModelError, match=r"read the same norm and run side by side"):
        build_table("falcon-7b", SEEN, BOARD, ASKED)
    lin = Variants(attention=(AttentionVariant(name="lin", linear=True),), ffn=SIZES.ffn[:1])
    (tmp_path / "lin.csv").write_text("layer,variant,score\n*,lin,1\n*,whole,0")
    with pytest.raises(
        InputError, match=r"no prefill_s of layer 0, variant lin, and 31 more; .* nothing is guessed"
    ):
        build_table("llama-3-8b", lin, BOARD, ASKED, read_scores(str(tmp_path / "lin.csv")))
    for wrong, told in (
        ({"name": "x", "kv_heads": 2, "none": True}, "more than one of: sizes, linear, none"),
        ({"name": "x", "kv_heads": 0}, "greater than or equal to 1"),
        ({"name": "a+b"}, "pattern"),
    ):
        with pytest.raises(ValueError, match=told):
            AttentionVariant.model_validate(wrong)
    with pytest.raises(ValueError, match="lacks one of experts, top_k, expert_width"):
        FfnVariant(name="x", experts=4)
    with pytest.raises(ValueError, match="full names more than one variant"):
        Variants(attention=(AttentionVariant(name="full"),), ffn=(FfnVariant(name="full"),))


def test_a_table_comes_back_as_it_was(table: Table, tmp_path: Path) -> None:
    save_table(table, tmp_path / "t.json")
    back = load_table(tmp_path / "t.json")
    assert (back.variants, back.model, back.asked, back.notes) == (
        table.variants,
        table.model,
        table.asked,
        table.notes,
    )
    for a, b in zip(table.problem.parts, back.problem.parts, strict=True):
        assert (a.name, a.variants) == (b.name, b.variants)
        assert (a.score == b.score).all() and (a.cost == b.cost).all()
    save_table(back, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    data = json.loads((tmp_path / "t.json").read_text())
    for wrong in ({"schema_version": 1}, {"parts": 3}, {"costs": ["a"]}, {"variants": {}}):
        (tmp_path / "wrong.json").write_text(json.dumps(data | wrong))
        with pytest.raises(InputError):
            load_table(tmp_path / "wrong.json")


def test_the_configuration_holds_the_choice(table: Table, tmp_path: Path) -> None:
    limits = parse_limits("decode_ms <= 70, kv_bytes <= 300MiB")
    choice = solve(table.problem, limits).best
    written = write_config(tmp_path / "out", table, choice)
    config = json.loads(written[0].read_text())
    assert config == config_of(table, choice)
    gone = any(name in ("no_attention", "no_ffn") for names in choice.variants for name in names)
    assert gone == ("does not read a layer without one of its parts" in config["_note"])
    for block, names in zip(config["block_configs"], choice.variants, strict=True):
        attention, ffn = block["attention"], block["ffn"]
        assert set(attention) == PUBLISHED_ATTENTION and set(ffn) >= PUBLISHED_FFN
        assert attention["no_op"] == (names[0] == "no_attention") and ffn["no_op"] == (names[1] == "no_ffn")
        group = {"full": 4, "kv2": 16, "w1024": 4, "no_attention": None}[names[0]]
        assert attention["n_heads_in_group"] == group
        assert attention["window_length"] == (1024 if names[0] == "w1024" else None)
        if names[1] in ("whole", "half"):
            assert width_of(ffn["ffn_mult"], 4096) == {"whole": 14336, "half": 7168}[names[1]]
        if names[1] == "moe":
            assert ffn["moe"]["num_local_experts"] == 8 and ffn["ffn_mult"] is None
    told = yaml.safe_load(written[1].read_text())
    assert [tuple(one["variants"]) for one in told["layers"]] == list(choice.variants)
    assert [one["names"] for one in layers_of(table, choice)] == [list(v) for v in choice.variants]


# Keys and widths of nvidia/Llama-3_3-Nemotron-Super-49B-v1 (config.json, hidden 8192), by its ffn_mult; the widths are
# those of its weights.
PUBLISHED_ATTENTION = {
    "n_heads_in_group", "no_op", "num_sink_tokens", "replace_with_linear", "sparsify", "unshifted_sink",
    "use_prefill_window_in_sink_attention", "window_length",
}  # fmt: skip
PUBLISHED_FFN = {"ffn_mult", "no_op", "replace_with_linear", "sparsify"}


@pytest.mark.parametrize(
    ("mult", "width"),
    [(5.25, 28672), (2.625, 14336), (1.3125, 7168), (1.0, 5632), (0.5, 2816), (3.28125, 17920)],
)
def test_widths_of_the_published_model(mult: float, width: int) -> None:
    assert width_of(mult, 8192) == width
    again = ffn_mult(width, 8192)
    assert again is not None and width_of(again, 8192) == width


def test_a_width_without_ffn_mult_is_written_as_it_is() -> None:
    assert ffn_mult(7000, 4096) is None
    for hidden in (2048, 4096, 5120, 7168):
        for width in range(256, 4 * hidden, 256):
            assert (mult := ffn_mult(width, hidden)) is not None and width_of(mult, hidden) == width


def test_a_sweep_is_the_solve_at_every_point(table: Table) -> None:
    limits = parse_limits("params >= 2e9, decode_ms <= 1")
    along = parse_sweep("decode_ms = 15ms..95ms:6")
    points = sweep(table.problem, along, limits)
    assert [p.status for p in points].count("INFEASIBLE") >= 1
    scores = []
    for point in points:
        if point.choice is None:
            continue
        alone = solve(table.problem, [limits[0], along.limit(point.value)]).best
        assert alone.proof.value == pytest.approx(point.choice.proof.value, abs=1e-9)
        scores.append(point.choice.score)
    assert scores == sorted(scores, reverse=True)
    columns = columns_of(table.problem, along, points)
    assert list(columns)[:4] == ["limit_decode_s", "status", "score", "score_bound"]
    assert all(len(column) == 6 for column in columns.values())
    assert columns["layers"][-1].count("+") == 32
    upward = sweep(table.problem, parse_sweep("params >= 2e9..7e9:3"), limits[1:0])
    assert [p.choice.totals["params"] >= p.value for p in upward if p.choice is not None] == [True] * 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("decode_ms = 20", r"cannot read limit 'decode_ms = 20'; write name <= value"),
        ("speed <= 3", r"unknown limit 'speed'"),
        ("decode_ms <= 20 GB", r"limit 'decode_ms <= 20 GB': unknown unit 'GB'"),
        ("params >= -1", r"limit 'params >= -1': params of '-1' is no finite number of at least zero"),
        ("params >= inf", r"no finite number"),
    ],
)
def test_limits_that_are_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_limits(text)


def test_limits_are_read_with_and_without_units() -> None:
    found = parse_limits(
        "decode_ms <= 20, decode_ms <= 20ms, prefill_s >= 0.5, kv_bytes <= 2GiB, params >= 4e9, params <= 4B"
    )
    read = [(x.total, x.least, x.most) for x in found]
    wanted = [
        ("decode_s", -np.inf, 0.02), ("decode_s", -np.inf, 0.02), ("prefill_s", 0.5, np.inf),
        ("kv_bytes", -np.inf, 2 * 2**30), ("params", 4e9, np.inf), ("params", -np.inf, 4e9),
    ]  # fmt: skip
    assert [x[0] for x in read] == [x[0] for x in wanted]
    assert [x[1:] for x in read] == [pytest.approx(x[1:], rel=2e-9) for x in wanted]
    assert read[-2:] == wanted[-2:]  # whole numbers are read as they are
    with pytest.raises(UnknownNameError):
        parse_sweep("speed=1..2:3")
    with pytest.raises(InputError, match="cannot read sweep"):
        parse_sweep("decode_ms=1..2")
