"""Length and cost of a run: the book's figures, and goodput against a simulation of failures.

Golden figures: jax-ml/scaling-book, chapters 5, 6, 8 and 12 (recomputed where print is wrong).
"""

import random

import numpy as np
import pytest

from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.limits import run_time as run
from meshwright.costmodel.limits.run_answer import Speed, compare_runs, train_time
from meshwright.costmodel.limits.run_time import Failures
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.setting import setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import MissingFigureError, WorkloadError

LLAMA = run.step_flops(70e9, 15e12)
V5P, H100 = 459e12, 990e12


def test_llama_70b_in_the_book() -> None:
    pod = run.train_s(LLAMA, 8960, V5P, 0.4)
    assert LLAMA == 6.3e24
    assert pod / run.DAY_S == pytest.approx(44.32, rel=1e-3)
    assert run.chip_hours(8960, pod) == pytest.approx(9.53e6, rel=1e-3)
    assert run.chip_hours(8960, pod) * 4.2 == pytest.approx(40.0e6, rel=2e-3)
    assert run.train_s(LLAMA, 225, V5P, 0.4) / run.DAY_S / run.YEAR_DAYS == pytest.approx(4.84, rel=1e-2)
    assert run.train_s(LLAMA, 4096, H100, 0.45) / run.DAY_S == pytest.approx(39.96, rel=1e-3)
    assert run.train_s(LLAMA, 1, V5P, 1.0) / run.DAY_S / run.YEAR_DAYS == pytest.approx(435.2, rel=1e-3)


def test_a_step_of_llama_13b_on_a_cube() -> None:
    assert run.train_s(run.step_flops(13e9, 3e6), 4096, 460e12, 0.4) == pytest.approx(0.31048, rel=1e-4)


@pytest.mark.parametrize(
    ("peak", "usd", "flops"), [(989e12, 10.8, 3.3e17), (459e12, 4.2, 3.93e17), (197e12, 1.2, 5.91e17)]
)
def test_flops_per_dollar(peak: float, usd: float, flops: float) -> None:
    assert run.flops_per_usd(peak, usd) == pytest.approx(flops, rel=2e-3)


def test_a_million_served_tokens() -> None:
    assert run.usd_per_million_tokens(235, 1.2) == pytest.approx(1.4184, rel=1e-4)


def test_chips_for_a_deadline_finish_in_time() -> None:
    chips = run.chips_for(LLAMA, 30 * run.DAY_S, V5P, 0.4)
    assert run.train_s(LLAMA, chips, V5P, 0.4) == pytest.approx(30 * run.DAY_S)


# Failures


def simulated(failures: Failures, interval_s: float, work_s: float, seed: int) -> float:
    """Share of time kept, failure by failure: a stretch of work and its checkpoint must pass without one."""
    draw, clock, done = random.Random(seed), 0.0, 0.0
    stretch = interval_s + failures.checkpoint_s
    until = draw.expovariate(1 / failures.mean_s)
    while done < work_s:
        if until >= stretch:
            clock, until, done = clock + stretch, until - stretch, done + interval_s
            continue
        clock += until
        while True:  # a restart may fail too
            until = draw.expovariate(1 / failures.mean_s)
            if until >= failures.restart_s:
                clock, until = clock + failures.restart_s, until - failures.restart_s
                break
            clock += until
    return done / clock


@pytest.mark.parametrize(
    ("failures", "interval_s"),
    [(Failures(10800, 300), 2000.0), (Failures(10800, 60, 600), 1500.0), (Failures(3600, 600, 300), 2400.0)],
)
def test_goodput_is_what_a_run_with_failures_keeps(failures: Failures, interval_s: float) -> None:
    kept = np.mean([simulated(failures, interval_s, 4e6, seed) for seed in range(8)])
    assert failures.goodput(interval_s) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("checkpoint_s", [1.0, 30.0, 300.0, 1800.0])
def test_dalys_interval_is_the_best_and_youngs_near_it(checkpoint_s: float) -> None:
    failures = Failures(10800, checkpoint_s)
    tried = failures.daly_s * np.geomspace(0.2, 5, 401)
    best = max(failures.goodput(float(t)) for t in tried)
    assert failures.goodput(failures.daly_s) >= best * (1 - 1e-4)
    assert best * (1 - 0.03) <= failures.goodput(failures.young_s) <= best * (1 + 1e-12)


def test_goodput_rises_as_failures_grow_rare_up_to_what_checkpoints_take() -> None:
    kept = [Failures(m, 60, 300).goodput(3600) for m in (1e3, 1e4, 1e5, 1e9)]
    assert kept == sorted(kept) and kept[-1] == pytest.approx(3600 / 3660, rel=1e-5)
    assert Failures(1.0, 3600).goodput(3600) == 0.0  # nothing is ever finished, and nothing overflows


# The answer


def ask(cluster: str = "v5p:16x20x28", **words):
    speed = words.pop("speed", Speed(mfu=0.4))
    return train_time(load_model("llama-3-70b"), parse_cluster(cluster), 15 * 10**12, 4096, speed, **words)


def test_flops_are_those_of_the_planners_mfu() -> None:
    given = setting(load_model("llama-3-70b"), parse_cluster("v5p:4x4x4"), Training(4096 * 1024, 4096))
    steps = 15e12 / (4096 * 1024)
    assert ask().number("flops") == pytest.approx(steps * model_flops(given))
    assert ask().number("days_rule") == pytest.approx(44.32 * 70.5537 / 70, rel=1e-3)


def test_an_mfu_and_the_tokens_per_second_it_makes_give_one_answer() -> None:
    one = ask()
    other = ask(speed=Speed(tokens_per_s=15e12 / one.number("seconds"), source="best plan"))
    for name in ("mfu", "days", "usd", "days_rule"):
        assert other.number(name) == pytest.approx(one.number(name))


def test_failures_are_paid_for() -> None:
    calm, rough = (
        ask(deadline_s=30 * run.DAY_S),
        ask(failures=Failures(10800, 300), deadline_s=30 * run.DAY_S),
    )
    kept = rough.number("goodput")
    assert 0.7 < kept < 0.9
    for name in ("chip_hours", "usd", "chips_for_deadline"):
        assert rough.number(name) == pytest.approx(calm.number(name) / kept, rel=1e-3)
    assert rough.number("days_with_failures") == pytest.approx(calm.number("days") / kept)


def test_money_and_energy_only_where_somebody_states_them() -> None:
    tpu = ask()
    assert tpu["usd_per_chip_hour"] == 4.2 and "energy" not in tpu.steps
    assert any("no source gives the power of v5p" in n for n in tpu.notes)
    assert any("2025-02" in n for n in tpu.notes)
    gpu = ask("h100:8x512")
    hours = gpu.number("days") * 24
    assert gpu.number("energy") == pytest.approx(4096 * 0.7 * hours)  # TDP 700 W
    h800 = ask("h800:8x256")
    assert "usd" not in h800.steps and any("no source prices h800" in n for n in h800.notes)
    assert ask("h800:8x256", usd_per_chip_hour=2.0, watts=700.0).number("usd") > 0


def test_the_cheapest_chip_is_told_among_those_with_a_price() -> None:
    """Chapter 8 chooses v5e, then v5p, then H100 by FLOPs per dollar at its prices."""
    runs = {c: ask(c) for c in ("v5p:16x20x28", "v5e:16x16*20", "h800:8x256")}
    found = compare_runs(runs)
    assert "cheapest per FLOP at peak: v5e:16x16*20" in found.binds
    assert "soonest: v5p:16x20x28" in found.binds
    rows = {str(row["cluster"]): row for row in found.table}
    assert rows["h800:8x256"]["PFLOP/USD"] == "-"
    assert rows["v5e:16x16*20"]["PFLOP/USD"] == pytest.approx(591, rel=1e-3)
    assert rows["v5p:16x20x28"]["USD/Mtoken"] == pytest.approx(
        runs["v5p:16x20x28"].number("usd") / 15e6, rel=1e-3
    )


def test_a_comparison_keeps_the_deadline_and_its_notes_name_what_is_there() -> None:
    clusters = ("v5p:16x20x28", "h800:8x64")
    found = compare_runs({c: ask(c, deadline_s=60 * run.DAY_S) for c in clusters})
    rows = {str(row["cluster"]): row for row in found.table}
    for cluster in clusters:
        alone = ask(cluster, deadline_s=60 * run.DAY_S)
        assert rows[cluster]["in time"] == alone["chips_for_deadline"]
    assert (
        "the deadline of 60 days is met by: v5p:16x20x28" in found.binds
        and "h800:8x64" not in found.binds[-40:]
    )
    assert found.number("deadline") == 60 * run.DAY_S
    assert any("a cluster asked alone has days_rule" in note for note in found.notes)
    assert "in time" not in compare_runs({c: ask(c) for c in clusters}).table[0]


def test_small_runs_are_told_in_single_units() -> None:
    def small(cluster: str):
        return train_time("llama-3-8b", cluster, 10**6, 4096, Speed(mfu=0.4))

    one = small("h100:1x1")
    assert one.binds.endswith(" USD") and "e-" not in one.binds and "M USD" not in one.binds
    assert one.binds.startswith("0.001412 days on 1 chip, ")
    table = compare_runs({c: small(c) for c in ("h100:1x1", "v5p:2x2x1")}).table
    assert table[0]["USD"] == pytest.approx(one.number("usd"), rel=1e-3)
    assert "M USD" in compare_runs({"v5p": ask(), "h100": ask("h100:8x512")}).table[0]


def test_what_makes_no_run_is_refused() -> None:
    with pytest.raises(
        WorkloadError, match=r"mfu is 1\.4; give a share of peak above 0 and at most 1, such as 0\.4"
    ):
        ask(speed=Speed(mfu=1.4))
    with pytest.raises(WorkloadError, match="either an mfu or tokens per second"):
        Speed()
    with pytest.raises(WorkloadError, match="checkpoint is 0 seconds; give a number above zero"):
        Failures(3600, 0)
    with pytest.raises(
        WorkloadError, match="every 1 s, checkpoints of 36000 s and restarts of 0 s nothing is ever finished"
    ):
        ask(failures=Failures(1.0, 36000))
    with pytest.raises(
        WorkloadError, match=r"every 1 s, checkpoints of 300 s .* less than 0\.001 of the time is kept"
    ):
        ask(failures=Failures(1.0, 300.0))  # once 3e134 days
    with pytest.raises(MissingFigureError, match="no source lists a peak in fp8 for v4"):
        ask("v4:4x4x4", dtype="fp8")
