"""The oracle itself: its rules, placements and hosts against the cost model's words and against hand counts."""

from dataclasses import replace
from math import comb
from pathlib import Path
from random import Random

import numpy as np
import pytest
from exhaustive_oracle import DEGREES, Wishes, all_rows, cuts_of, hosts_of, placements_of, price_everything
from independent_rules import OFFLOAD_PREDICATES, PREDICATES, Candidate, well_formed
from instances import build, instance

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Layout
from meshwright.costmodel.legal import RULES
from meshwright.costmodel.placement import enumerate_placements, groups_of
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import HOST, words_of
from meshwright.hardware.errors import LayoutError
from meshwright.hardware.network import SwitchTier, TorusAxis

WORDS = {"cp_kind": CP_KINDS, "schedule": SCHEDULES}
AXIS = TorusAxis("x", 4, 1e9, True, 1e-6)
TIER = SwitchTier("nvlink", 4, 1e9, 1e-6)


def test_the_oracle_knows_nothing_of_the_optimizer() -> None:
    for name in (
        "exhaustive_oracle",
        "mixed_oracle",
        "tensor_oracle",
        "independent_rules",
        "instances",
        "monolithic",
        "monolithic_costs",
        "tiny_models",
        "wishes",
    ):
        assert "meshwright.optimizer" not in (Path(__file__).parent / f"{name}.py").read_text(), name


def test_the_rules_have_the_same_names() -> None:
    assert {rule.name for rule in RULES} == {*PREDICATES, *OFFLOAD_PREDICATES}


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_every_rule_agrees_with_its_twin(seed: int) -> None:
    """On candidates drawn without regard to any rule."""
    random, setting = Random(seed), instance(seed).setting
    drawn = [_anything(random) for _ in range(1500)]
    columns = {
        name: np.array([WORDS[name].index(v) if name in WORDS else int(v) for v in values], np.int64)
        for name, values in zip(Candidate._fields, zip(*drawn, strict=True), strict=True)
    }
    kinds = len(setting.model.kinds)
    offloads = [random.choice(OFFLOADS) for _ in drawn]
    coded = np.array([OFFLOADS.index(o) for o in offloads], np.int64)
    rows = Rows(**columns, policies=np.zeros((len(drawn), kinds), np.int64), offload=coded)
    for rule in RULES:
        theirs = rule.holds(setting, rows)
        if rule.name in PREDICATES:
            ours = np.array([PREDICATES[rule.name](setting, x) for x in drawn])
        else:
            twin = OFFLOAD_PREDICATES[rule.name]
            ours = np.array([twin(setting, x, o) for x, o in zip(drawn, offloads, strict=True)])
            assert 0.05 < ours.mean() < 0.95
        differ = np.flatnonzero(theirs != ours)
        assert not len(differ), (rule.name, drawn[differ[0]])


def _anything(random: Random) -> Candidate:
    tp = random.choice((1, 1, 2, 3, 4, 6))
    return Candidate(
        dp_replicate=random.randint(1, 3), dp_shard=random.randint(1, 3), zero=random.randint(0, 3),
        cp=random.choice((1, 1, 2, 3, 4)), cp_kind=random.choice(CP_KINDS), tp=tp, sp=random.random() < 0.7,
        pp=random.randint(1, 4), vpp=random.choice((1, 1, 2, 3)), schedule=random.choice(SCHEDULES),
        ep=random.choice((1, 1, 2, 3, 4)), etp=random.choice((1, tp)), micro_batch=random.choice((1, 1, 2, 3)),
        sequences=random.choice((4, 6, 12, 24)), reshard=random.random() < 0.8,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_well_formed_is_what_a_layout_accepts(seed: int) -> None:
    random = Random(seed)
    for _ in range(500):
        x = _anything(random)
        if x.stage_devices % (x.ep * x.etp):
            continue  # a rule of its own
        try:
            Layout(**x._asdict())
        except LayoutError:
            assert not well_formed(x), x
        else:
            assert well_formed(x), x


@pytest.mark.parametrize("seed", range(24))
def test_placements_are_those_of_the_cost_model(seed: int) -> None:
    levels = instance(seed).setting.cluster.levels
    for degrees in (
        (2, 1, 1, 1, 2),
        (1, 2, 2, 1, 1),
        (2, 2, 1, 1, 1),
        (1, 1, 3, 1, 2),
        (2, 1, 2, 1, 2),
        (1, 1, 1, 1, 4),
    ):
        named = dict(zip(("tp", "cp", "dp_shard", "dp_replicate", "pp"), degrees, strict=True))
        ours = placements_of(degrees, levels)
        assert set(ours) == set(enumerate_placements(named, levels))
        assert len(set(ours)) == len(ours)


def test_placements_by_hand() -> None:
    """tp=2 and pp=2 on a ring of 4 and a tier of 4: together on one (two orders on the ring), or apart."""
    assert len(placements_of((2, 1, 1, 1, 2), (AXIS, TIER))) == 2 + 1 + 2
    assert placements_of((3, 1, 1, 1, 1), (AXIS,)) == (((("tp", 3),),),)  # one of four stays idle
    assert placements_of((8, 1, 1, 1, 1), (AXIS,)) == ()


@pytest.mark.parametrize(
    ("placement", "per_host", "hosts"),
    [
        (((("tp", 4),), (("pp", 2),)), 4, {(4, 0), (0, 4)}),
        (((("tp", 2), ("pp", 2)), ()), 4, {(2, 2)}),
        (((("pp", 2), ("tp", 2)), ()), 2, {(1, 1)}),  # stages alternate: every host has both
        (((("tp", 2), ("pp", 2)), ()), 2, {(2, 0), (0, 2)}),
        (((("pp", 3),), (("dp_shard", 2),)), 4, {(1, 1, 1)}),  # one device of each host idle
        (((("pp", 2),), (("pp", 2),)), 8, {(1, 1, 1, 1)}),  # idle devices between the used ones
        (((("pp", 2),), (("pp", 2),)), 4, {(1, 1, 0, 0), (0, 0, 1, 1)}),
    ],
)
def test_hosts_by_hand(placement: tuple, per_host: int, hosts: set) -> None:
    pp = max(len(h) for h in hosts)
    assert set(hosts_of(placement, (AXIS, TIER), per_host, pp)) == hosts


@pytest.mark.parametrize("seed", [0, 5, 9, 13])
def test_cuts_are_all_compositions(seed: int) -> None:
    setting = instance(seed).setting
    for pp in range(1, setting.model.layers + 1):
        assert len(cuts_of(setting, pp, 1, "1f1b")) == comb(setting.model.layers - 1, pp - 1)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_prices_are_those_of_a_single_estimate(seed: int) -> None:
    """Plans drawn from the whole space: seconds, device bytes, and no complaint from the cost model."""
    random = Random(seed)
    _, space = build(seed)
    setting = space.setting
    present = [tensor_bits(setting.framework, kind) for kind in setting.model.kinds]
    for batch in (b for b in space.batches if b.seconds.size):
        # A row that may keep activations on the host and keeps none there is a layout of the class without.
        rows = space.rows[batch.of]
        written = np.flatnonzero(~rows.offloads("activations") | (rows.policies >> HOST > 0).any(axis=1))
        n, c = int(random.choice(written)), random.randrange(len(batch.cuts))
        row = rows[n : n + 1]
        number = {k: int(getattr(row, k)[0]) for k in Candidate._fields}
        spoken = {name: known[number.pop(name)] for name, known in WORDS.items()}
        layout = Layout(
            **{**number, "sp": bool(number["sp"]), "reshard": bool(number["reshard"])},
            **spoken,
            layers_per_stage=batch.cuts[c],
            policies=words_of([[[(code, 1)] for code in row.policies[0].tolist()]], present)[0],
            offload=OFFLOADS[int(row.offload[0])],
            placement=batch.placements[batch.placement_of[n]],
        )
        priced = estimate(setting, layout)
        scale = setting.training.sequences / priced.sequences
        assert batch.seconds[n, c] == pytest.approx(priced.step_s * scale, rel=1e-9)
        assert batch.device_bytes[n, c] == pytest.approx(max(priced.stage_bytes), rel=1e-9)


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_gpipe_is_left_out_because_it_is_never_better(seed: int) -> None:
    setting = instance(seed).setting
    narrow, wide = price_everything(setting, Wishes()), price_everything(setting, Wishes(asks_schedule=True))
    assert len(wide.rows) >= len(narrow.rows)
    for capacity in (np.inf, setting.capacity_bytes):
        best, other = narrow.best(capacity), wide.best(capacity)
        assert (best is None) == (other is None)
        if best is not None and other is not None:
            assert best.seconds == pytest.approx(other.seconds, rel=1e-12)


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_sp_makes_no_stage_larger_and_no_layer_slower(seed: int) -> None:
    """Where both are legal. A whole step may still be slower by what a shorter backward pass hides less."""
    setting = instance(seed).setting
    rows = all_rows(setting, Wishes(candidate=lambda x: x.tp > 1))
    if not len(rows):
        return
    few = np.random.default_rng(seed).choice(len(rows), min(len(rows), 2000), replace=False)
    rows = rows[few]
    placed = [
        placements_of(tuple(int(getattr(rows, n)[i]) for n in DEGREES), setting.cluster.levels)
        for i in range(len(rows))
    ]
    rows = rows[np.flatnonzero([bool(p) for p in placed])]
    comm = PlacedComm(setting.network, groups_of([p[0] for p in placed if p], rows.ep, rows.etp))
    with_sp = StageTable.of(setting, rows, comm)
    without = StageTable.of(setting, rows.with_columns(sp=np.zeros_like(rows.sp)), comm)
    assert (with_sp.layer_s <= without.layer_s * (1 + 1e-12)).all()
    assert (with_sp.hop_s <= without.hop_s * (1 + 1e-12)).all()
    stage = np.arange(int(rows.pp.max()))[None, :]
    counts = np.ones((len(rows), stage.shape[1], len(setting.model.kinds)))
    assert (with_sp.stage_bytes(stage, counts) <= without.stage_bytes(stage, counts) * (1 + 1e-12)).all()


@pytest.mark.parametrize("seed", [3, 11, 24])
def test_kinds_of_context_parallelism_are_one_without_it(seed: int) -> None:
    setting = instance(seed).setting
    rows = price_everything(setting, Wishes(candidate=lambda x: x.cp == 1)).rows[:1]
    layouts = [
        replace(Layout(), zero=0, micro_batch=int(rows.micro_batch[0]), cp_kind=kind) for kind in CP_KINDS
    ]
    prices = {(e.step_s, e.stage_bytes) for e in (estimate(setting, x) for x in layouts)}
    assert len(prices) == 1
