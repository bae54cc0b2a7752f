"""What the pages must say; not how they are set."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.optimizer.cli import main
from meshwright.optimizer.plan import Plan
from meshwright.optimizer.recommend import recommend
from meshwright.optimizer.report import words
from meshwright.optimizer.report.answer import answer
from meshwright.optimizer.report.page import WIDTH, render, table
from meshwright.optimizer.report.recompute import summed

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("folder")


def page(plan: Plan) -> str:
    return render(answer(plan))


@pytest.fixture(scope="module")
def plan() -> Plan:
    asked = mw.Training(2**19, 8192, total_tokens=15 * 10**12)
    return recommend("llama-3-8b", "h100:8x1", asked)


def test_a_plan_answers_every_question_of_a_tired_engineer(plan: Plan) -> None:
    text = page(plan)
    e = plan.estimate
    for wanted in (
        "llama-3-8b (8.03B parameters) on h100:8x1: 8 chips",
        "Plan   uses 8 of 8 chips",
        "nvlink",
        "micro-batch",
        "stages        32 layers",
        "recompute",
        "offload",
        f"Step time   expected {e.step_s:.4g} s   lower {e.lower_s:.4g} s   upper {e.upper_s:.4g} s",
        f"{e.mfu:.1%} MFU (of the bf16 peak of the used devices), ",
        f"{e.tokens_per_s:,.0f} tokens/s",
        "compute",
        "Memory of a device",
        "activations",
        "free",
        "Idle   none: every device is used",
        "Whole run   15T tokens",
        "USD for all 8 chips (idle ones too) at 6.88 USD per chip-hour",
        "Next best plans",
        "in band",
        f"Certificate   OPTIMAL over the stated space {plan.certificate.space_hash}",
        "Search   ",
        "uses at most the devices there are",
    ):
        assert wanted in text, wanted


def test_the_proof_says_that_it_is_about_the_model(plan: Plan) -> None:
    text = " ".join(page(plan).split())
    missed = f"misses the step time by up to {plan.certificate.error_band:.0%}, and 3 of the 3"
    assert (
        f"The proof is about the model, not the machine: of 80% of runs of this kind the model {missed}"
        in text
    )
    assert "3 of the 3 next plans shown are closer than that, so a measurement may rank them first." in text
    far = replace(plan, runner_ups=tuple(replace(r, in_band=False) for r in plan.runner_ups))
    assert "0 of the 3 next plans shown are closer than that." in " ".join(page(far).split())
    one = replace(plan, runner_ups=plan.runner_ups[:1])
    assert ", and 1 of the 1 next plan shown is closer than that, so" in " ".join(page(one).split())


def test_the_parts_shown_add_up(plan: Plan) -> None:
    shown = re.findall(r"^  (\w+) +([\d.,]+) +[\d.]+%", page(plan).split("Memory")[0], re.MULTILINE)
    *parts, (last, total) = shown
    assert last == "sum"
    assert sum(float(s) for _, s in parts) == pytest.approx(float(total), abs=len(parts) * 0.0005)


def test_pages_are_plain_ascii_within_the_width(plan: Plan) -> None:
    text = page(plan)
    assert text.isascii() and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert not [row for row in text.splitlines() if row != row.rstrip()]


def test_a_plan_from_its_file_shows_the_same_page(plan: Plan) -> None:
    assert page(Plan.from_dict(plan.to_dict())) == page(plan)


def test_colour_only_where_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = render(answer(plan), colour=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert bare.split() == page(plan).split()


def test_square_brackets_are_text_not_markup() -> None:
    assert "[bold]x[/bold] :smile:" in render([table([("[bold]x[/bold] :smile:",)], "l")])


def show(capsys: Capture, line: str) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


def test_each_degree_names_its_network_levels_inner_to_outer(capsys: Capture) -> None:
    text = show(
        capsys,
        "estimate llama-3-70b --cluster tpu7x:4x4x8 --batch 4Mi --seq 8192 --layout tp=4,pp=4,dp=16,zero=1,layers=19/21/20/20",
    )
    assert "llama-3-70b (70.55B parameters) on tpu7x:4x4x8: 256 devices (128 chips)" in text
    assert "uses 256 of 256 devices (128 of 128 chips)" in text
    degrees = {
        m[1]: (int(m[2]), m[3])
        for m in re.finditer(r"^  (tp|dp_shard|pp) +(\d+)  (.*?)  ", text, re.MULTILINE)
    }
    assert {name: degree for name, (degree, _) in degrees.items()} == {"tp": 4, "dp_shard": 16, "pp": 4}
    for degree, levels in degrees.values():
        product = 1
        for name, factor in re.findall(r"(package|x|y|z) (\d+)", levels):
            assert name in ("package", "x", "y", "z")
            product *= int(factor)
        assert product == degree
    assert "layers: 19 on stage 0, 21 on stage 1, 20 on stages 2-3" in text
    assert "all stages:" in text


def test_idle_chips_are_counted_with_the_reason(capsys: Capture) -> None:
    text = show(
        capsys, "estimate tiny.json --cluster h100:8x8 --batch 64Ki --seq 4096 --layout tp=2,dp=4,zero=1"
    )
    assert "Idle   56 of 64 chips" in text
    assert "used: ib400 1 of 8" in text
    assert "the given layout uses no more" in text


def test_a_moved_batch_is_said(capsys: Capture) -> None:
    text = show(
        capsys,
        "estimate tiny.json --cluster h100:8x1 --batch 20seq~20% --seq 4096 --layout dp=8,zero=1,sequences=16",
    )
    assert "moved to 16 sequences (-20.00%)" in text


def test_experts_and_host_memory_are_shown(capsys: Capture) -> None:
    text = show(
        capsys,
        "estimate mixtral-8x7b --cluster v5p:4x4x4 --batch 1Mi --seq 4096 --host-memory 512GB "
        "--layout dp=64,zero=3,ep=8,recompute=full,offload=activations",
    )
    assert re.search(r"ep +8  x 4 \* y 2 of 4 +8 ranks hold the same experts", text)
    assert "on the host: at most" in text


def test_experts_without_copies_are_said_in_grammar(capsys: Capture) -> None:
    text = show(
        capsys, "estimate mixtral-8x7b --cluster h100:8x1 --batch 64Ki --seq 4096 --layout dp=8,zero=3,ep=8"
    )
    assert re.search(r"ep +8  nvlink 8 +no other rank holds the same experts\n", text)


def test_the_peak_behind_the_mfu_is_named(capsys: Capture) -> None:
    ask = "estimate llama-3-8b --cluster h100:8x1 --batch 1Mi --seq 8192 --dtype fp8 --layout dp=8,zero=3"
    mfu = re.search(r"([\d.]+)% MFU \(of the fp8 peak of the used devices\), ", show(capsys, ask))
    assert mfu is not None
    given = mw.resolve("llama-3-8b", "h100:8x1", mw.Training(2**20, 8192, compute_dtype="fp8"))
    priced = mw.estimate(given, mw.parse_layout("dp=8,zero=3"))
    flops_per_s = 6 * 8.03e9 * priced.tokens_per_s  # less attention, which only adds
    assert float(mfu[1]) / 100 > flops_per_s / (8 * given.cluster.chip.peak_flop_per_s("fp8"))
    assert float(mfu[1]) / 100 < flops_per_s / (8 * given.cluster.chip.peak_flop_per_s("bf16"))


def test_a_nearly_full_device_has_one_share(capsys: Capture) -> None:
    layout = "dp=8,zero=3,micro_batch=2,recompute=elementwise"
    text = show(capsys, f"estimate llama-3-8b --cluster h100:8x1 --batch 512Ki --seq 8192 --layout {layout}")
    page_share = re.search(r"GiB usable \((\d+)%\)", text)
    warned = re.search(r"the heaviest stage fills (\d+)% of the usable memory; above 90% allocators", text)
    assert page_share is not None and warned is not None
    assert page_share[1] == warned[1]


def test_equal_stages_are_one_figure(plan: Plan) -> None:
    def stages(*sizes: float) -> str:
        memory = tuple({"parameters": size} for size in sizes)
        layout = replace(
            plan.layout,
            dp_replicate=1,
            dp_shard=1,
            zero=0,
            pp=len(sizes),
            layers_per_stage=(),
            stage_policies=(),
        )
        made = replace(plan, layout=layout, estimate=replace(plan.estimate, memory=memory))
        return re.search(r"all stages: (.*)", page(made))[1]  # type: ignore[index]

    gib = 2**30
    assert stages(63.9 * gib, 63.9 * gib + 1) == "63.90 GiB"
    assert stages(63.8 * gib, 63.9 * gib) == "63.80 to 63.90 GiB"


def test_catalogues_say_where_to_find_sources(capsys: Capture) -> None:
    assert "--sources" in show(capsys, "chips")
    assert "docs.cloud.google.com/tpu/docs/tpu7x" in show(capsys, "chips tpu7x --sources")
    clusters = show(capsys, "clusters")
    assert (
        "chip:shape[*slices][@fabric]" in clusters
        and "v5p:16x20x28" in clusters
        and "ib400-sharp" in clusters
    )
    assert "mixtral-8x7b" in show(capsys, "models mixtral") and "llama-3-8b" not in show(
        capsys, "models mixtral"
    )
    assert "aiconfigurator" in show(capsys, "models mixtral --sources")


def test_one_model_shows_all_of_its_facts(capsys: Capture) -> None:
    text = show(capsys, "models mixtral-8x7b")
    for name, figure, note in (
        ("parameters", "46,702,792,704", "each weight once"),
        ("active", "12,879,925,248", "that one token meets"),
        ("embedding", "131,072,000", "input side"),
        ("head", "131,076,096", "output side; not tied"),
        ("vocabulary", "32,000", ""),
    ):
        assert re.search(rf"^  {name} +{figure} *{note}$", text, re.MULTILINE), name
    assert re.search(
        r"^  moe +32 +1\.451B +394\.3M +32 +8 +128 +- +2 of 8 experts of 14,336$", text, re.MULTILINE
    )
    tied = show(capsys, "models gemma-3-27b-it")
    assert "output side; tied to the embedding" in tied
    assert re.search(r"^  sliding +52 .* 1,024  21,504$", tied, re.MULTILINE)
    assert "- text only: the vision tower is not trained, and not among the parameters" in tied
    seeing = r"27 layers on 4,096 patches, 256 tokens an image"
    assert re.search(
        rf"^  with vision +27,432,406,640 +and tower with projector: {seeing}$", tied, re.MULTILINE
    )
    ahead = show(capsys, "models deepseek-v3")
    assert re.search(
        r"^  with MTP +682,636,472,320 +and 1 module of multi-token prediction$", ahead, re.MULTILINE
    )
    assert re.search(
        r"^  as stored +684,489,830,400 +with their copies of token table and head$", ahead, re.MULTILINE
    )


def test_a_config_of_the_user_is_a_model_too(capsys: Capture, folder: Path) -> None:
    assert "tiny.json: llama, 2.886M parameters" in show(capsys, "models tiny.json")
    (folder / "own").mkdir()
    (folder / "tiny.json").rename(folder / "own" / "config.json")
    assert "own: llama, 2.886M parameters" in show(capsys, "models own")
    both = show(capsys, "models own LLAMA-3-8B")
    assert "2 models" in both and "own" in both and "llama-3-8b " in both


def test_compare_page(capsys: Capture) -> None:
    ask = "estimate tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096"
    show(capsys, f"{ask} --layout tp=2,dp=4,zero=1 -o a.yaml")
    show(capsys, f"{ask} --layout dp=8,zero=3 -o b.yaml")
    text = show(capsys, "compare a.yaml b.yaml")
    for wanted in (
        "a: a.yaml",
        "b: b.yaml",
        "times as many tokens a second",
        "b / a",
        "fsdp",
        "step_s",
        "GiB",
    ):
        assert wanted in text
    same = show(capsys, "compare a.yaml a.yaml")
    assert "equally fast" in same and "Layout   the same" in same


def test_compare_tells_policies_in_one_line(capsys: Capture) -> None:
    """By their layers over the model, listed while that is short; as data they are told in full."""
    ask = "estimate tiny.json --cluster h100:8x1 --batch 64Ki --seq 4096 --layout"
    show(capsys, f"{ask} pp=2,dp=4,zero=1,recompute=full*2;full -o a.yaml")
    show(capsys, f"{ask} pp=2,dp=4,zero=1,recompute=save(core+up);none -o b.yaml")
    layout = show(capsys, "compare a.yaml b.yaml").partition("Totals")[0]
    assert re.search(r"^  recompute  full +2 save\(core\+up\), 2 none$", layout, re.MULTILINE)
    assert "policies" not in layout
    long = "save(norm1+qkv+core+out+norm2+up+act)"
    show(capsys, f"{ask} pp=2,dp=4,zero=1,recompute={long};elementwise -o c.yaml")
    assert "2 save 7 tensors, 2 elementwise" in show(capsys, "compare a.yaml c.yaml")
    assert f"{long};elementwise" in show(capsys, "compare a.yaml c.yaml --json")


@pytest.mark.parametrize(
    ("stages", "layers", "kinds", "text"),
    [
        ("full", (32,), (), "full"),
        ("full*3|none*5;none", (8, 8), (), "13 none, 3 full"),
        ("full*3|none*5", (8, 8), (), "10 none, 6 full"),
        ("save(core+up):offload(up)*3|none*5;none", (8, 8), (), "13 none, 3 save 2 tensors (1 on host)"),
        ("full;none;mlp;attention", (4, 4, 4, 4), (), "4 policies"),
        ("none/full;-/full", (3, 3), ("dense", "moe"), "dense: none, moe: full"),
        ("none/full*2|none*1;-/none", (4, 3), ("dense", "moe"), "dense: none, moe: 2 full, else none"),
        ("none/full;-/none", (4, 3), ("dense", "moe"), "dense: none, moe: 2 policies"),
        ("save(core)/-;full/-", (2, 2), ("dense", "moe"), "dense: 2 policies"),
    ],
)
def test_policies_are_summed(stages: str, layers: tuple[int, ...], kinds: tuple[str, ...], text: str) -> None:
    assert summed([stage.split("/") for stage in stages.split(";")], layers, kinds) == text


def test_next_best_plans_that_differ_in_policies_alone_say_so(plan: Plan) -> None:
    """Also where the sums are alike: the column stays."""
    text = ("save(core+up)*3|none*29", "save(core+out)*3|none*29")
    first, second = (replace(plan.layout, policies=("none",), stage_policies=((w,),)) for w in text)
    other = replace(plan.runner_ups[0], layout=second)
    told = page(replace(plan, layout=first, runner_ups=(other,))).partition("Next best plans")[2]
    assert told.count("29 none, 3 save 2 tensors") == 2 and "save(core" not in told


def test_long_policies_leave_the_page_its_columns(plan: Plan) -> None:
    word = "save(norm1+qkv+core+out+norm2+up+act+unfused):offload(input+qkv+core+out+up)"
    layout = replace(
        plan.layout, offload="activations", policies=("none",), stage_policies=((f"{word}*8|none:offload(input)*24",),)
    )  # fmt: skip
    text = page(replace(plan, layout=layout))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert re.search(r"^  stages +32 layers$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("share", "text"), [(0.012, "-1.20%"), (0.0, "0.00%"), (4e-5, "0.00%"), (-1e-9, "0.00%")]
)
def test_nothing_saved_has_no_sign(share: float, text: str) -> None:
    assert words.less(share) == text


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(-8.9e-16, 3, "0.000"), (1234.5, 2, "1,234.50"), (-1.5, 1, "-1.5")]
)
def test_fixed_decimals(value: float, decimals: int, text: str) -> None:
    assert words.fixed(value, decimals) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "stage", "1 stage"), (4, "micro-batch", "4 micro-batches"), (2000, "chip", "2,000 chips")],
)
def test_plurals(count: int, noun: str, text: str) -> None:
    assert words.plural(count, noun) == text


def test_every_part_of_a_step_is_explained() -> None:
    from meshwright.costmodel.estimate import PARTS

    assert set(words.PARTS) == set(PARTS)
