"""Where a launcher takes even stages only: what each of them holds, and where its ranks may sit."""

from dataclasses import replace

import numpy as np
from costmodel_cases import make_setting
from independent_launchers import refused

from meshwright.costmodel.lanes import kind_counts
from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.costmodel.placement import enumerate_placements
from meshwright.optimizer.launchers.catalogue import LAUNCHERS
from meshwright.optimizer.launchers.launcher import factors_of
from meshwright.optimizer.units import Units

GLM = replace(make_setting("glm-4.5-air", "h100:8x4", 128, 4096), launcher="maxtext")
# Layers of two kinds in several orders.
PATTERNS = ((0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1), (0, 1) * 6, (1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1))


def test_equal_shares_are_the_layers_of_an_even_layout() -> None:
    for pattern in PATTERNS:
        setting = replace(GLM, model=replace(GLM.model, pattern=pattern))
        units = Units.of(setting, 1)
        assert units.even and not units.alike
        pp = np.array([1, 2, 3, 4, 5, 6, 12])
        shares, whole = units.equal_shares(pp, np.full(len(pp), 12.0), 12)
        assert whole.tolist() == [12 % p == 0 for p in pp.tolist()]
        for row, stages in enumerate(pp.tolist()):
            if 12 % stages == 0:
                even = Layout(pp=stages, layers_per_stage=(12 // stages,) * stages)
                assert (shares[row, :stages] @ units.sorts == kind_counts(setting.model, [even])[0]).all()
                assert not shares[row, stages:].any()


def test_where_ranks_may_sit_is_what_the_finished_layout_is_held_to() -> None:
    levels = GLM.cluster.levels
    met: dict[tuple[str, bool], int] = {}
    for sizes in ((2, 1, 4, 1, 4), (1, 2, 2, 2, 4), (4, 2, 1, 4, 1), (1, 1, 1, 8, 4), (8, 1, 1, 1, 4)):
        degrees = dict(zip(DIMENSIONS, sizes, strict=True))
        for placement in enumerate_placements(degrees, levels):
            layout = Layout(
                **degrees, zero=1 if degrees["dp_shard"] * degrees["cp"] > 1 else 0, placement=placement
            )
            layout = replace(layout, layers_per_stage=(46 // degrees["pp"],) * degrees["pp"])
            for name in ("megatron", "torchtitan", "deepspeed", "calculon"):
                said = {"rank order", "networks"} & set(refused(name, GLM, layout))
                sits = bool(LAUNCHERS[name].orders(factors_of(placement)).all())
                assert sits == (not said), (name, placement)
                met[name, sits] = met.get((name, sits), 0) + 1
    assert len(met) == 8 and min(met.values()) >= 3, met
