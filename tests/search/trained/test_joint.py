"""Shape and layout in one proof against exhaustive search: every shape's every layout, listed and priced by an oracle
that knows nothing of the optimizer, and the least loss that ends in time picked by hand."""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import pytest
from exhaustive_oracle import PricedSpace, Wishes, price_everything
from instances import with_memory
from mixed_oracle import mixed

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.question import resolve
from meshwright.optimizer.solve import SolveOptions
from meshwright.search.architecture import counts_of, model_of
from meshwright.search.grid import Grid, list_shapes
from meshwright.search.law import Law, load_law
from meshwright.search.trained.floors import replace_model
from meshwright.search.trained.train import Trained, train

pytestmark = pytest.mark.usefixtures("few_tensors")
LARGE = (21, 26, 45)  # as long to price as all others together
CASES = [seed for seed in range(50) if seed not in LARGE]
CLUSTERS = ("h100:2x1", "h100:4x1", "h100:2x2", "v5e:2x2", "v5p:2x2x1", "h100:8x1")
LAWS = ("besiroglu", "gemstones-wdpt", "abnar")
ROUNDING = 1e-7  # of the solver's ticks, as a share of loss or of seconds


@dataclass(frozen=True)
class Case:
    """One question with its exhaustive answer: per shape the fastest step (inf where nothing fits)."""

    law: Law
    grid: Grid
    cluster: Cluster
    training: Training
    deadline_s: float
    framework: str
    fastest_s: tuple[float, ...]

    @property
    def least_loss(self) -> float:
        """By trying every shape; inf where none ends in time."""
        shapes, ends = list_shapes(self.grid).shapes, self.grid.ends
        best, batch, wanted = float("inf"), self.training.global_batch_tokens, self.training.total_tokens
        for row, step_s in enumerate(self.fastest_s):
            steps = -(-wanted // batch) if wanted else int(self.deadline_s / step_s)
            if steps >= 1 and steps * step_s <= self.deadline_s:
                one = shapes[[row]]
                columns = self.law.columns(one, counts_of(one, ends), float(wanted or steps * batch))
                best = min(best, float(self.law.loss(columns).loss[0]))
        return best


@lru_cache
def case(seed: int) -> Case:
    random = Random(seed)
    mixtures = random.random() < 0.3
    deep = random.choice((1, 2))
    grid = Grid(
        source="drawn", vocab=random.choice((2_000, 32_000)), tied=random.random() < 0.5,
        layers=tuple(sorted(random.sample((2, 3, 4, 5), deep))),
        width=tuple(sorted(random.sample((512, 1024, 1536, 2048), 2))),
        head_dim=(256,), kv_heads=(random.choice((1, 2, "heads")),),
        ffn_ratio=tuple(sorted(random.sample((1.0, 2.0, 4.0), 3 - deep))),
        experts=((1, 1), random.choice(((2, 1), (4, 2)))) if mixtures else ((1, 1),),
        rules=("heads_fill_width", "kv_heads_divide_heads", "top_k_within_experts", "whole_expert_width"),
    )  # fmt: skip
    law = load_law(random.choice(LAWS))
    cluster = parse_cluster(CLUSTERS[seed % len(CLUSTERS)])
    if seed % 8 == 2:  # hosts that take activations, optimizer state or both
        cluster = replace(cluster, host_memory_bytes=2 * 10**12, cpu_update_params_per_s=1e9)
    sequences = random.choice((4, 6, 8, 12) if cluster.devices < 8 else (4, 8))
    seq_len = random.choice((1024, 2048))
    batch = sequences * seq_len
    wanted = None if seed % 2 else batch * random.randint(20_000, 10**7) + random.choice((0, 1))
    training = Training(batch, seq_len, total_tokens=wanted)
    framework = random.choice(("jax", "megatron"))
    shapes = list_shapes(grid).shapes
    given = resolve(model_of(shapes, 0, grid.ends), cluster, training, framework=framework)
    spaces = [_priced(given, model_of(shapes, row, grid.ends)) for row in range(len(shapes))]
    needs = sorted(s.leanest().device_bytes for s in spaces)  # type: ignore[union-attr]
    capacity = given.capacity_bytes
    if seed % 5 < 3:  # memory binds, or lets some shapes fit only in a slower layout
        capacity = int(random.choice(needs) * random.uniform(0.9, 2.0))
        cluster = with_memory(given, _memory_for(given, capacity), cluster.host_memory_bytes).cluster
        capacity = resolve(
            model_of(shapes, 0, grid.ends), cluster, training, framework=framework
        ).capacity_bytes
    found = [mixed(s, capacity).best if s.setting.framework.chooses else s.best(capacity) for s in spaces]
    fastest = tuple(float("inf") if plan is None else plan.seconds for plan in found)
    finite = [s for s in fastest if s < float("inf")] or [1.0]
    steps = -(-wanted // batch) if wanted else random.randint(20_000, 10**7)
    low = 0.5 if seed % 7 == 3 else 0.97  # some questions are left that no shape answers
    deadline = steps * random.uniform(
        low * min(finite), 0.95 * min(finite) if seed % 7 == 3 else 1.1 * max(finite)
    )
    return Case(law, grid, cluster, training, deadline, framework, fastest)


def _priced(given: Setting, model: ModelSpec) -> PricedSpace:
    return price_everything(replace_model(given, model), Wishes())


def _memory_for(given: Setting, capacity: int) -> int:
    """Device memory of which the framework leaves so many bytes."""
    fw = given.framework
    return int((capacity + fw.reserve_bytes) / (1 - fw.reserve_share)) + 1


def asked(case: Case, **more: object) -> Trained:
    return train(
        case.law, case.grid, case.cluster, case.training, case.deadline_s,
        framework=case.framework, extrapolate=True, options=SolveOptions(runner_ups=0), **more,
    )  # type: ignore[arg-type]  # fmt: skip


@lru_cache
def answer(seed: int) -> Trained | Infeasible:
    try:
        return asked(case(seed))
    except Infeasible as no:
        return no


@pytest.mark.parametrize("seed", [*CASES, *(pytest.param(seed, marks=pytest.mark.full) for seed in LARGE)])
def test_the_joint_answer_is_that_of_exhaustive_search(seed: int) -> None:
    question, made = case(seed), answer(seed)
    expected = question.least_loss
    if isinstance(made, Infeasible):
        assert expected == float("inf")
        return
    assert made.best.loss == pytest.approx(expected, rel=ROUNDING)
    assert made.best.fastest.step_s == pytest.approx(question.fastest_s[made.best.row], rel=ROUNDING)
    assert made.days(made.best) * 86_400 <= question.deadline_s * (1 + 1e-9)
    assert made.proof.plans_priced + made.plan.certificate.solved < 0.05 * made.proof.pairs
    assert made.plan.estimate.fits
    again = estimate(replace_model(made.given, made.model), made.plan.layout)
    assert again.step_s == made.plan.estimate.step_s == pytest.approx(made.best.fastest.step_s, rel=ROUNDING)


def test_the_cases_are_of_every_sort(capsys: pytest.CaptureFixture[str]) -> None:
    questions = [case(seed) for seed in CASES]
    infeasible = sum(q.least_loss == float("inf") for q in questions)
    tight = sum(any(s == float("inf") for s in q.fastest_s) for q in questions)
    answers = [made for made in map(answer, CASES) if isinstance(made, Trained)]
    priced, bounded, pairs = (
        sum(getattr(a.proof, n) for a in answers) for n in ("plans_priced", "rows_bounded", "pairs")
    )
    with capsys.disabled():
        print(
            f"\n{len(questions)} cases, {infeasible} infeasible, {tight} with shapes that fit no memory; "
            f"{pairs:,} pairs, {priced} priced ({priced / pairs:.3%}), {bounded} bounded ({bounded / pairs:.3%})"
        )
    assert infeasible >= 3
    assert tight >= 5
    assert len({a.best.row for a in answers}) >= 5
