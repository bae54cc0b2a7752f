"""An explanation is the estimate taken apart: parts sum, floors lie below, bytes and FLOPs are those of the model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from instances import instance
from small_configs import TINY

import meshwright as mw
from meshwright.costmodel.flops import operator_flops, weight_flops
from meshwright.costmodel.layout import parse_layout
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError
from meshwright.optimizer.cli import main
from meshwright.optimizer.plan import Plan, Priced
from meshwright.optimizer.question import price, resolve
from meshwright.optimizer.reasons.explain import Explanation, explained
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions

QUICK = SolveOptions(runner_ups=0)
SEEDS = [s for s in range(3, 40, 4) if s % 10 != 9]


def plans() -> Iterator[tuple[Setting, Plan]]:
    for seed in SEEDS:
        asked = instance(seed)
        if asked.answer is not None:
            yield asked.setting, recommend_in(asked.setting, asked.constraints, QUICK)


@pytest.fixture(scope="module")
def made() -> list[tuple[Setting, Plan, Explanation]]:
    return [(given, plan, explained(given, plan)) for given, plan in plans()]


def test_parts_sum_to_the_step(made: list[tuple[Setting, Plan, Explanation]]) -> None:
    assert len(made) >= 5
    for _, plan, why in made:
        parts, step = plan.estimate.parts, plan.estimate.step_s
        assert sum(o.seconds for o in why.operators) == pytest.approx(parts["compute"] + parts["recompute"])
        assert {t.name: t.exposed_s for t in why.traffic} == pytest.approx(
            {name: parts[name] for name in (t.name for t in why.traffic)}
        )
        told = {t.name for t in why.traffic}
        assert all(
            parts[name] == 0 for name in ("tp", "cp", "ep", "fsdp", "pp", "dp", "offload") if name not in told
        )
        assert sum(why.binds.values()) == pytest.approx(step)
        assert [s.memory_bytes for s in why.stages] == pytest.approx(plan.estimate.stage_bytes)
        assert why.stages[why.slowest].micro_batch_s == max(s.micro_batch_s for s in why.stages)


def test_floors_lie_below_and_the_rest_is_told(made: list[tuple[Setting, Plan, Explanation]]) -> None:
    for _, _, why in made:
        for o in why.operators:
            assert max(o.flop_s, o.hbm_s) <= o.floor_s * (1 + 1e-4)
            assert o.floor_s <= (o.flop_s + o.hbm_s) * (1 + 1e-9)
            assert 0 < o.achieved <= 1 + 1e-9
            assert o.floor_s + sum(o.rest.values()) == pytest.approx(o.seconds)
            assert min(o.rest.values()) >= -1e-12
        for t in why.traffic:
            assert t.exposed_s <= t.alone_s * (1 + 1e-9)
            assert 0 < t.floor_s <= t.alone_s * (1 + 1e-9)
        for link in why.links:
            assert 0 < link.floor_s <= link.busy_s * (1 + 1e-9)


def test_products_are_the_models_own_flops() -> None:
    """Plain data parallelism: every device does its share of three times forward, the kernel 3.5 times."""
    given = resolve("llama-3-8b", "h200:8x2", mw.Training(2**20, 4096))
    plan = price(given, parse_layout("dp=16,zero=1,recompute=full"))
    why, tokens = explained(given, plan), 2**20 / 16
    peak, kind = given.cluster.chip.peak_flop_per_s("bf16"), given.model.kinds[0]
    each = operator_flops(kind, 4096)
    for o in why.operators:
        if each.get(o.name):
            times = 3.5 if o.name == "core" else 3.0
            assert o.flop_s * peak == pytest.approx(32 * tokens * times * each[o.name], rel=1e-6), o.name
    head = next(o for o in why.operators if o.name == "head")
    assert head.flop_s * peak == pytest.approx(tokens * 3 * weight_flops(given.model.head_matrix), rel=1e-6)


def test_bytes_on_the_wire_are_those_of_the_collectives() -> None:
    given = resolve("llama-3-8b", "h200:8x2", mw.Training(2**20, 4096))
    reduced = explained(given, price(given, parse_layout("dp=16,recompute=full")))
    [gradients] = reduced.traffic
    assert (gradients.name, gradients.sent_bytes) == (
        "dp",
        pytest.approx(2 * 15 / 16 * 2 * given.model.params),
    )
    # 5 crossings of each of 2 blocks, 2 more for the embedding and 3 for the head, once per micro-batch.
    cut = explained(given, price(given, parse_layout("dp=8,tp=2")))
    crossings = (32 * 5 * 2 + 2 + 3) * 2**20 / 8 * 4096 * 2 / 2
    assert next(t for t in cut.traffic if t.name == "tp").sent_bytes == pytest.approx(crossings)
    assert next(t for t in cut.traffic if t.name == "tp").link == "nvlink links"
    hops = explained(given, price(given, parse_layout("dp=8,pp=2,recompute=full")))
    sent = next(t for t in hops.traffic if t.name == "pp").sent_bytes
    assert sent == pytest.approx(2 * 2**20 / 8 * 4096 * 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    mw.save_plan(mw.recommend("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192), constraints="tp<=4"), path)
    return path


def test_a_file_is_enough(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mw.explain(mw.load_plan(saved)).to_dict()["step_s"] == mw.load_plan(saved).estimate.step_s
    assert main(["explain", str(saved)]) == 0
    page = capsys.readouterr().out
    for wanted in ("What binds", "Operators", "Communication", "nearer roof", "llama-3-8b on h100:8x1"):
        assert wanted in page
    assert page.count("\n") <= 50


def test_a_changed_question_is_refused(saved: Path) -> None:
    plan = mw.load_plan(saved)

    def changed(part: str, key: str, value: object) -> Priced:
        data = plan.to_dict()
        data["inputs"] = {**data["inputs"], part: {**data["inputs"][part], key: value}}
        return Plan.from_dict(data)

    with pytest.raises(
        InputError, match=r"another model: its hash is 00, here it is \w+; say which with --model"
    ):
        mw.explain(changed("model", "hash", "00"))
    with pytest.raises(InputError, match=r"does not say where this is: unknown model 'gone'.* --model PATH"):
        mw.explain(changed("model", "name", "gone"))
    with pytest.raises(InputError, match=r"another cluster: its devices is 9, here it is 8; plan again"):
        mw.explain(changed("cluster", "devices", 9))
    with pytest.raises(InputError, match=r"plan is 'plan.yaml'; give a Plan"):
        mw.explain("plan.yaml")


def test_a_file_that_the_plan_cannot_name_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    Path("rates.yaml").write_text("name: mine\nprovenance: a test\nextends: default\ncommon: {hbm: 0.5}\n")
    line = "recommend own-model/config.json --cluster h100:8x1 --batch 64Ki --seq 4096 --efficiency rates.yaml -o plan.yaml"
    assert main(line.split()) == 0
    Path("config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 5}))
    (tmp_path / "moved").mkdir()
    folder.rename(tmp_path / "moved" / "own-model")
    capsys.readouterr()
    for words, text in (
        ([], "say it with --model PATH"),
        (["--model", "moved/own-model"], "unknown efficiency 'mine'; known: book, default, ideal"),
        (
            ["--model", "config.json", "--efficiency", "rates.yaml"],
            "the plan was made with another model: its params is",
        ),
        (
            ["--model", "moved/own-model", "--efficiency", "default"],
            "the plan was written with efficiency 'mine', here it is 'default'; give --efficiency the file that is called mine",
        ),
        (
            ["--model", "gone.json", "--efficiency", "rates.yaml"],
            "no file or folder 'gone.json'; give the path of a config.json",
        ),
    ):
        assert main(["explain", "plan.yaml", *words]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and text in err, err
    assert main(["explain", "plan.yaml", "--model", "moved/own-model", "--efficiency", "rates.yaml"]) == 0
    assert main(["explain", "gone.yaml"]) == 2
