"""Several devices: each front is that of the device alone, and one shape for all equals what plain loops find."""

import numpy as np
import pytest

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError
from meshwright.search.asked import Budget, NoShapeError, search_shapes
from meshwright.search.grid import Grid, list_shapes, load_grid
from meshwright.search.law import load_law
from meshwright.search.machine.several import fronts
from meshwright.search.machine.several_answer import fronts_working
from meshwright.search.price import Pricer

PLAS = load_law("plas-10b")
ASKED = Request(1, 512, 16, 2, 2)


def small_grid(rng: np.random.Generator) -> Grid:
    """A part of the paper's grid."""
    axes = ("layers", "width", "ffn_ratio", "experts")
    grid = load_grid("plas")
    return grid.model_copy(
        update={
            a: tuple(v for v in getattr(grid, a) if rng.random() < 0.5) or getattr(grid, a)[:1] for a in axes
        }
    )


def devices(rng: np.random.Generator) -> dict[str, Device]:
    return {
        name: Device.ideal(*(float(v) for v in rng.uniform((1e13, 5e10, 3e9), (1e14, 5e11, 4e10))))
        for name in ("a", "b", "c")
    }


@pytest.mark.parametrize("seed", range(20))
def test_one_for_all_equals_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid, of, budget = small_grid(rng), devices(rng), Budget(total_s=float(rng.choice([0.05, 0.2, 0.5])))
    shapes = list_shapes(grid).shapes
    loss = PLAS.loss(shapes).loss
    costs = {name: Pricer(grid.ends, device, ASKED).costs(shapes) for name, device in of.items()}

    def serves(name: str, i: int, most: float) -> bool:
        c = costs[name]
        in_time = c.total_s[i] <= budget.total_s and c.memory_bytes[i] <= of[name].memory_bytes
        return bool(in_time and loss[i] <= most)

    def own(most: float) -> dict[str, list[int]]:
        return {name: [i for i in range(len(shapes)) if serves(name, i, most)] for name in of}

    for wanted in (None, float(np.quantile(loss, 0.5))):
        done = fronts(of, PLAS, grid, ASKED, budget, loss=wanted)
        rows = own(np.inf if wanted is None else wanted)
        common = set.intersection(*(set(r) for r in rows.values()))
        if not common:
            assert done.one_for_all is None and done.why
            continue
        worst = []
        for i in sorted(common):
            if wanted is None:
                regret = [loss[i] - min(loss[j] for j in rows[n]) for n in of]
            else:
                regret = [costs[n].total_s[i] / min(costs[n].total_s[j] for j in rows[n]) - 1 for n in of]
            worst.append(max(regret))
        assert done.one_for_all is not None
        assert max(done.one_for_all.regret.values()) == pytest.approx(min(worst), abs=1e-12)
        assert all(c.total_s[0] <= budget.total_s for c in done.one_for_all.costs.values())


def test_each_front_is_the_device_s_own() -> None:
    of = devices(np.random.default_rng(1))
    done = fronts(of, "plas-10b", "plas", ASKED, Budget(total_s=0.2), latency="plas")
    for name, device in of.items():
        alone = search_shapes("plas-10b", "plas", device, ASKED, Budget(total_s=0.2), latency="plas")
        assert np.array_equal(done.searched[name].on_front, alone.on_front)
        assert done.searched[name].best == alone.best
    assert fronts(of, "plas-10b", "plas", ASKED).one_for_all is None  # nothing to choose by


def test_the_page() -> None:
    of = devices(np.random.default_rng(1))
    page = fronts_working(of, PLAS, load_grid("plas"), ASKED, Budget(total_s=0.2))
    assert "one shape for all of loss" in page.binds and len(page.table) <= 24
    assert {row["row"] for row in page.table} == {"best", "for all", "front"}
    assert min(page.number(f"regret_{name}") for name in of) >= 0
    best = {row["device"]: row["loss"] for row in page.table if row["row"] == "best"}
    (shared,) = {row["loss"] for row in page.table if row["row"] == "for all"}
    for n, name in enumerate(of, 1):
        assert page.number(f"regret_{name}") == pytest.approx(float(shared) - float(best[n]), abs=2e-4)
        assert page[f"device_{n}"] == name


def test_refusals() -> None:
    one = {"a": Device.ideal(1e13, 1e11, 8e9)}
    with pytest.raises(InputError, match="no device is given"):
        fronts({}, PLAS, "plas", ASKED)
    with pytest.raises(InputError, match="devices is"):
        fronts(["a"], PLAS, "plas", ASKED)  # type: ignore[arg-type]
    with pytest.raises(NoShapeError, match="a: no shape of the grid fits"):
        fronts({"a": one["a"].holding(1e6)}, PLAS, "plas", ASKED)
    with pytest.raises(NoShapeError, match="keeps the budget on any of a; allow more"):
        fronts_working(one, PLAS, "plas", ASKED, Budget(total_s=1e-6))
    with pytest.raises(InputError, match="loss is nan"):
        fronts(one, PLAS, "plas", ASKED, loss=float("nan"))
