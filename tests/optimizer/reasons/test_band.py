"""Plans inside the band are those of exhaustive search; the robust one has the least worst case by the cost model."""

from dataclasses import fields

import numpy as np
import pytest
from exhaustive_oracle import PricedSpace
from instances import VISIBLE, build
from mixed_oracle import mixed

import meshwright as mw
from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError
from meshwright.optimizer.cli import main
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.band import NOMINAL, Band, in_band
from meshwright.optimizer.reasons.machine import levers
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions
from meshwright.optimizer.space import Space

QUICK = SolveOptions(runner_ups=0, refinements=10**6)
SEEDS = (0, 2, 4, 7, 14, 17, 24, 38)


def every_kind(space: PricedSpace, most_s: float) -> list[float]:
    """Seconds of the best plan of each visible kind up to `most_s`, by exhaustive search."""
    rows, capacity = space.rows, space.setting.capacity_bytes
    found: dict[tuple[int, ...], float] = {}
    if space.setting.framework.chooses:
        names = [f.name for f in fields(rows) if f.name != "policies"]
        best = [
            (tuple(row[names.index(n)] for n in VISIBLE), seconds)
            for row, seconds in mixed(space, capacity, every=True).rows.items()
        ]
    else:
        keys = np.stack([getattr(rows, n) for n in VISIBLE], axis=1).tolist()
        best = list(zip(map(tuple, keys), space.best_of_rows(capacity).tolist(), strict=True))
    for key, seconds in best:
        if seconds <= most_s:
            found[key] = min(seconds, found.get(key, seconds))
    return sorted(found.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_inside_the_band_is_missing(seed: int) -> None:
    asked, space = build(seed)
    assert asked.answer is not None
    made = in_band(asked.setting, constraints=asked.constraints, options=QUICK, band=0.1)
    best_s = asked.answer.seconds
    # A plan within rounding of the band's edge may lie on either side.
    sure, at_most = every_kind(space, best_s * 1.1 * (1 - 1e-6)), every_kind(space, best_s * 1.1 * (1 + 1e-6))
    listed = [p.value_s for p in made.plans]
    assert made.whole and len(sure) <= len(listed) <= len(at_most)
    assert listed == pytest.approx(at_most[: len(listed)], rel=1e-6)
    assert [p.tie for p in made.plans] == [s - listed[0] < 5e-5 * listed[0] for s in listed]


def test_runner_ups_are_the_first_of_the_band() -> None:
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))
    plan = recommend_in(given, None, SolveOptions(runner_ups=10))
    made = in_band(given, band=0.013)
    # Layouts of one visible kind may tie.
    seconds = [plan.certificate.value_s, *(r.value_s for r in plan.runner_ups)][: len(made.plans)]
    assert seconds == pytest.approx([p.value_s for p in made.plans][:11], rel=1e-6)
    assert plan.layout == made.plans[0].layout
    assert all(r.in_band for r in plan.runner_ups)


def check_robust(given: Setting, made: Band) -> None:
    """Each layout priced again under each case, one at a time."""
    cases = {NOMINAL: given}
    for lever in levers(Space(given, ())):
        if lever.name != "HBM size":
            cases[f"{lever.name} {made.band:.0%} lower"] = lever.scale(given, 1 - made.band)
    worst = []
    for near in made.plans:
        steps = {name: estimate(s, near.layout) for name, s in cases.items()}
        each = {n: e.step_s * given.training.sequences / e.sequences for n, e in steps.items()}
        assert near.worst_s == pytest.approx(max(each.values()))
        assert each[near.worst] == pytest.approx(near.worst_s)
        worst.append(near.worst_s)
    assert set(made.cases) == set(cases)
    assert made.plans[made.robust].worst_s == min(worst)


def test_the_robust_plan_has_the_least_worst_case() -> None:
    for seed in (0, 4, 17):
        asked, _ = build(seed)
        check_robust(
            asked.setting, in_band(asked.setting, constraints=asked.constraints, options=QUICK, band=0.2)
        )


def test_the_robust_plan_may_differ_from_the_best() -> None:
    """The best plan of this question leans on products more than another does, which leans on the network."""
    asked, _ = build(51)
    made = in_band(asked.setting, constraints=asked.constraints, options=QUICK, band=0.3)
    check_robust(asked.setting, made)
    chosen, best = made.plans[made.robust], made.plans[0]
    assert made.robust > 0 and chosen.value_s > best.value_s
    assert chosen.worst_s < best.worst_s and (best.worst, chosen.worst) == (
        "FLOP/s 30% lower",
        "ib400 links 30% lower",
    )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main([*line, "--in-band", "2%", "--robust"]) == 0
    page = capsys.readouterr().out
    for wanted in (
        "Inside the error band",
        "plans within 2% of the best",
        "worst, s",
        "Robust   ",
        "FLOP/s 2% lower",
    ):
        assert wanted in page
    for given in ("7", "0%", "wide"):
        assert main([*line, "--in-band", given]) == 2
        assert (
            f"--in-band: '{given}' is not a share above 0% and below 100%, such as 5%"
            in capsys.readouterr().err
        )


def test_bad_bands_get_one_line() -> None:
    given = resolve("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))
    for band, text in (
        (2, "band is 2; give a share from 0 to below 1, such as 0.1"),
        ("x", "band is 'x'; give a share of step time such as 0.1"),
    ):
        with pytest.raises(InputError) as caught:
            in_band(given, band=band)  # type: ignore[arg-type]
        assert str(caught.value) == text
