"""Another layout pinned: the same as asking with constraints, told term by term, or proven not to be."""

import json
import re

import pytest
from instances import instance

import meshwright as mw
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.optimizer.cli import main
from meshwright.optimizer.plan import Infeasible, Plan
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.why_not import NONE, SAME, SLOWER, TIE, pinned, why_not
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions

QUICK = SolveOptions(runner_ups=0)
SEEDS = (12, 17, 40)


@pytest.fixture(scope="module")
def asked() -> tuple[Setting, Plan]:
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))
    return given, recommend_in(given, None, QUICK)


def test_a_pin_is_a_constraint() -> None:
    """On random questions, for degrees near the plan's: the same seconds, or the same no."""
    seen = set()
    for seed in SEEDS:
        at = instance(seed)
        if at.answer is None:
            continue
        plan = recommend_in(at.setting, at.constraints, QUICK)
        for layout in (
            f"tp={3 - plan.layout.tp if plan.layout.tp < 3 else 1}",
            "pp=2",
            "recompute=full,dp=1",
        ):
            why = why_not(at.setting, layout, constraints=at.constraints, options=QUICK)
            seen.add(why.verdict)
            assert why.plan == plan
            both = ", ".join(filter(None, (at.constraints, why.pinned)))
            try:
                other = recommend_in(at.setting, both, QUICK)
            except LayoutError as rule:
                assert (why.verdict, why.refusal) == (NONE, str(rule))
            except Infeasible:
                assert why.verdict == NONE and why.clash is not None
                assert any(x.text in why.pinned for x in why.clash.limits)
            else:
                assert why.other == other and why.slower_by is not None
                assert why.slower_by >= -1e-6 and (why.slower_by > 1e-6) == (why.verdict == SLOWER)
            json.dumps(why.to_dict())
    assert {NONE, SLOWER} <= seen


def test_the_difference_sums(asked: tuple[Setting, Plan]) -> None:
    given, plan = asked
    why = why_not(plan, "tp=8", setting=given)
    assert why.verdict == SLOWER and why.comparison is not None and why.other is not None
    apart = sum(float(p.b or 0) - float(p.a or 0) for p in why.comparison.parts)
    assert apart == pytest.approx(why.other.estimate.step_s - plan.estimate.step_s)
    assert why.slower_by == pytest.approx(apart / plan.estimate.step_s)
    held = {p.name: (p.a, p.b) for p in why.comparison.memory}
    assert held["sum"] == (max(plan.estimate.stage_bytes), max(why.other.estimate.stage_bytes))


def test_the_plan_itself_is_told(asked: tuple[Setting, Plan]) -> None:
    _, plan = asked
    why = why_not(plan, f"tp={plan.layout.tp},pp={plan.layout.pp}")
    assert why.verdict == SAME and why.slower_by == 0
    assert TIE != SAME


def test_what_fits_nowhere_is_short_of_memory(asked: tuple[Setting, Plan]) -> None:
    given, plan = asked
    why = why_not(plan, "recompute=none,tp=1,cp=1,pp=1", setting=given)
    assert why.verdict == NONE and why.clash is not None and why.short is not None
    assert {x.kind for x in why.clash.limits} == {"constraint", "device memory"}
    assert why.short.layout.tp == 1 and why.short.short_bytes > 0


def test_pins_read_like_layouts() -> None:
    assert pinned("tp=4, pp=1,dp=2,recompute=full,sp=true") == (
        "tp==4", "pp==1", "dp==2", "recompute==full", "sp==true",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "error", "text"),
    [
        ("", LayoutError, "cannot read '' in the layout; write name=value, like tp=8,pp=4"),
        ("tp==4", LayoutError, "cannot read 'tp==4' in the layout; write tp=4"),
        ("tp=4,tp=2", LayoutError, "layout gives tp twice; give it once"),
        ("ttp=4", UnknownNameError, "unknown layout key 'ttp'; did you mean tp or etp?"),
        ("layers=16/16", LayoutError, "layers of stages are the solver's to choose; leave layers out, or price them with estimate"),
        ("recompute=full/none", LayoutError, "recompute=full/none gives one each; pin one for all, or price that layout with estimate"),
        ("offload=disk", UnknownNameError, "unknown value of offload 'disk'; known: activations, none, optimizer, optimizer+activations, optimizer+gradients, optimizer+gradients+activations, optimizer+gradients+parameters, optimizer+gradients+parameters+activations, optimizer+parameters, optimizer+parameters+activations, parameters, parameters+activations"),
        (7, LayoutError, "layout is 7; give a string such as 'tp=4,pp=1'"),
    ],
)  # fmt: skip
def test_bad_layouts_get_one_line(
    layout: str, error: type[InputError], text: str, asked: tuple[Setting, Plan]
) -> None:
    with pytest.raises(error) as caught:
        why_not(asked[1], layout)
    assert str(caught.value) == text


def test_bad_questions_get_one_line(asked: tuple[Setting, Plan]) -> None:
    with pytest.raises(InputError, match=r"question is 'h100'; give a plan, or what resolve"):
        why_not("h100", "tp=2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a plan brings its constraints along; give none"):
        why_not(asked[1], "tp=2", constraints="pp==1")


def test_recommend_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "recommend",
        "llama-3-8b",
        "--cluster",
        "h100:8x1",
        "--batch",
        "512Ki",
        "--seq",
        "8192",
        "--runner-ups",
        "0",
    ]
    assert main([*line, "--why-not", "tp=8,pp=1"]) == 0
    out = capsys.readouterr().out
    page = out[out.index("Why not tp=8,pp=1?") :]
    assert re.search(r"slower: the plan [\d.]+ s a step, the best with it", page)
    assert page.count("\n") <= 60
    assert main([*line, "--why-not", "tp=3"]) == 0
    assert "No plan has it: constraint 'tp==3' leaves no value of tp" in capsys.readouterr().out
    assert main([*line, "--why-not", "tp=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why_not"]["verdict"] == SLOWER
    assert main([*line, "--why-not", "ttp=8"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("meshwright: unknown layout key 'ttp'; did you mean")
