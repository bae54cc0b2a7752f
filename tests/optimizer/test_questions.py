"""The questions the planner was built for, at full size: proven, consistent, explained, the same twice."""

import pytest

import meshwright as mw
from meshwright.costmodel.layout import Layout
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.files import to_json
from meshwright.optimizer.plan import Plan
from meshwright.optimizer.question import resolve
from meshwright.optimizer.space import Space
from meshwright.optimizer.validate import device_stages, violations

MI = 2**20
QUESTIONS = [
    ("llama-3-70b", "h100:8x64", 2**22, 8192),  # its preferred plan lies a rounding below the first
    ("llama-3-70b", "v5p:16x20x28", 4 * MI, 4096),
    ("llama-3.1-405b", "h100:8x2048", 16 * MI, 8192),
    ("deepseek-v3", "h800:8x256", 15360 * 4096, 4096),
    ("mixtral-8x7b", "v5p:4x4x4", MI, 4096),
    ("llama-3-8b", "h100:8x16384", 16384 * 131072, 8192),
    ("gemma-3-27b-it", "v5e:16x16*2", 2 * MI, 4096),
    ("gpt-oss-120b", "gb200:72x8", 4 * MI, 8192),
    ("qwen3-30b-a3b", "tpu7x:4x4x4", MI, 4096),
    ("llama-3-8b", "mi300x:8x8", MI, 8192),
]


@pytest.mark.parametrize(("model", "cluster", "tokens", "seq_len"), QUESTIONS, ids=lambda x: str(x))
def test_a_question_is_proven_and_its_plan_holds_together(
    model: str, cluster: str, tokens: int, seq_len: int
) -> None:
    training = mw.Training(tokens, seq_len)
    plan = mw.recommend(model, cluster, training)
    proof = plan.certificate
    assert proof.status == "OPTIMAL"
    assert proof.gap < 1e-4
    assert proof.bound_s <= proof.value_s
    given = resolve(model, cluster, training)
    assert list(violations(given, plan.layout, plan.estimate)) == []
    assert plan.estimate.lower_s <= plan.estimate.step_s <= plan.estimate.upper_s
    assert all(other.value_s >= proof.value_s - proof.slack_s for other in plan.runner_ups)
    assert len({_seen(p) for p in (plan.layout, *(r.layout for r in plan.runner_ups))}) == 1 + len(
        plan.runner_ups
    )
    assert Plan.from_dict(plan.to_dict()) == Plan.from_dict(Plan.from_dict(plan.to_dict()).to_dict())


def _seen(layout: Layout) -> tuple[object, ...]:
    return (
        layout.tp, layout.cp, layout.pp, layout.ep, layout.dp_shard, layout.zero, layout.micro_batch, layout.vpp,
        layout.policies,
    )  # fmt: skip


def test_the_same_question_gives_the_same_bytes() -> None:
    ask = ("llama-3-70b", "v5p:8x8x8", mw.Training(MI, 4096))
    assert to_json(mw.recommend(*ask)) == to_json(mw.recommend(*ask))


def test_what_cannot_be_used_is_explained() -> None:
    """The pod of the book: 8,192 chips are no box of 16 x 20 x 28, and what is idle has a reason."""
    plan = mw.recommend("llama-3-70b", "v5p:16x20x28", mw.Training(4 * MI, 4096))
    used = 1
    for _, count, size in plan.idle.levels:
        assert count <= size
        used *= count
    assert used == plan.layout.devices == 8960 - plan.idle.devices
    assert plan.idle.devices > 0
    assert "the best layout on more devices uses" in plan.idle.reason


def test_too_little_memory_is_proven_with_the_bytes_that_lack() -> None:
    """405B with Adam needs about 14 bytes a parameter: 64 devices of 80 GB hold less, whatever the layout."""
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend("llama-3.1-405b", "h100:8x8", mw.Training(4 * MI, 8192), constraints="offload == none")
    assert no.value.short_bytes is not None
    given = resolve("llama-3.1-405b", "h100:8x8", mw.Training(4 * MI, 8192))
    closest = mw.estimate(given, no.value.layout)
    assert closest.short_bytes == pytest.approx(no.value.short_bytes, rel=1e-3)
    state = 14 * 405.85e9 / 64 - given.capacity_bytes
    assert no.value.short_bytes > state


def test_stages_are_numbered_as_the_placement_says() -> None:
    plan = mw.recommend(
        "llama-3-70b", "h100:8x8", mw.Training(MI, 4096), constraints="pp==4, vpp==1, offload==none"
    )
    given = resolve("llama-3-70b", "h100:8x8", mw.Training(MI, 4096))
    stages = [stage for _, stage in device_stages(given, plan.layout)]
    assert sorted(set(stages)) == list(range(4))
    assert all(stages.count(s) == len(stages) // 4 for s in range(4))


def test_a_wide_tolerance_is_searched_in_part_and_says_so() -> None:
    """More batch sizes are never worse per sequence; those left out are counted, and the page names the way out."""
    asked = mw.Training(256 * 1024, 1024, batch_tolerance=0.5)
    values, told = [], []
    for sizes in (1, 8, 300):
        plan = mw.recommend(
            "gpt2", "h100:8x1", asked, options=mw.SolveOptions(batch_sizes=sizes, runner_ups=0)
        )
        values.append(plan.certificate.value_s)
        told.append(plan.certificate.removed.get("batch sizes that divide less well", 0))
        warned = [w for w in plan.warnings if w.startswith("batch:")]
        assert len(warned) == (sizes < 257)
        assert all(f"{sizes} of the 257 sizes" in w and "--batch-sizes" in w for w in warned)
    assert values == sorted(values, reverse=True)
    assert told == [256, 249, 0]
    alone = mw.recommend(
        "gpt2", "h100:8x1", mw.Training(256 * 1024, 1024), options=mw.SolveOptions(runner_ups=0)
    )
    assert alone.certificate.value_s == pytest.approx(values[0], rel=1e-6)


def test_batches_are_taken_the_asked_one_first_then_by_divisors() -> None:
    given = mw.resolve("gpt2", "h100:8x1", mw.Training(100 * 1024, 1024, batch_tolerance=0.04))
    # Divisors: 96 has 12, 102 and 104 have 8, 98 and 99 have 6, the primes 2.
    assert Space(given, ()).batches == (100, 96, 102, 104, 99, 98, 101, 97, 103)
    wished = Space(given, parse_constraints("sequences in {97,104}"))
    assert wished.batches == (104, 97)
