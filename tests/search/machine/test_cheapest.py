"""The cheapest device and the front of price against loss equal what pricing every shape on every device finds."""

from itertools import product

import numpy as np
import pytest

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.working import told
from meshwright.hardware.errors import InputError
from meshwright.search.architecture import counts_of
from meshwright.search.asked import Budget
from meshwright.search.front import front
from meshwright.search.grid import Grid, list_shapes, load_grid
from meshwright.search.law import Law, load_law
from meshwright.search.machine.cheapest import Chosen, NoDeviceError, cheapest, price_front
from meshwright.search.machine.points import points_of
from meshwright.search.machine.space import DeviceSpace, Reached, load_space
from meshwright.search.price import Latency, Pricer
from meshwright.search.shape import Floats

PLAS, GRID, EXAMPLE = load_law("plas-10b"), load_grid("plas"), load_space("example")
ASKED = Request(1, 1024, 16, 2, 2)
ONE = {"name": "one", "source": "", "compute": ["90 TFLOP/s"], "bandwidth": ["300 GB/s"], "memory": ["40 GB"],
       "price": {"unit": "x", "source": ""}}  # fmt: skip
SOON = Budget(ttft_s=0.1, tpot_s=0.02)


def some(rng: np.random.Generator, values: list[object], least: int = 1) -> list[object]:
    """A part of a list, in its order."""
    size = int(rng.integers(least, len(values) + 1))
    return [values[i] for i in sorted(rng.choice(len(values), size, replace=False))]


def a_space(rng: np.random.Generator) -> DeviceSpace:
    """Few levels; prices in coarse steps, so that devices tie; at times a rule, or options with prices that fall."""
    compute = some(rng, ["8 TFLOP/s", "20 TFLOP/s", "30 TFLOP/s", "60 TFLOP/s", "90 TFLOP/s"])
    memory = some(rng, ["1 GB", "3 GB", "8 GB", "40 GB"])
    options = [{"of": m, "price": int(rng.integers(0, 4)) * 10} for m in memory]
    rules = [{"of": "bandwidth", "per": "memory", "each": "1 GB", "most": "40 GB/s"}]
    rules += [
        {"of": "compute", "per": "bandwidth", "each": "1 GB/s", "least": "100 GFLOP/s", "most": "1 TFLOP/s"}
    ]
    reached = {"compute": 0.7, "bandwidth": 0.6, "experts": 0.5, "layer": "50 us", "elementwise": 1}
    return DeviceSpace.model_validate({
        "name": "small", "source": "this test", "compute": compute, "memory": options if rng.random() < 0.7 else memory,
        "bandwidth": {"from": "20 GB/s", "to": "300 GB/s", "step": f"{rng.integers(40, 200)} GB/s"},
        "price": {"unit": "x", "source": "", "fixed": 5, "terms": [
            {"of": "compute", "each": "10 TFLOP/s", "price": int(rng.integers(0, 3))},
            {"of": "bandwidth", "each": "40 GB/s", "price": int(rng.integers(0, 3))}]},
        "rules": rules[: int(rng.integers(0, 3))],
        "decode": reached if rng.random() < 0.5 else {},
    })  # fmt: skip


def a_grid(rng: np.random.Generator) -> Grid:
    return Grid.model_validate({
        "source": "", "vocab": 32000, "tied": True, "head_dim": some(rng, [64, 128]),
        "layers": some(rng, [4, 8, 12, 16, 24, 32], 2), "width": some(rng, [768, 1024, 1536, 2048, 3072], 2),
        "kv_heads": some(rng, [1, 2, "heads"]), "ffn_ratio": some(rng, [0.5, 1, 2, 4]),
        "experts": some(rng, [(1, 1), (8, 1), (16, 2)]), "rules": ("kv_heads_divide_heads", "whole_expert_width"),
    })  # fmt: skip


def all_pairs(
    space: DeviceSpace,
    grid: Grid,
    law: Law,
    asked: Request,
    budget: Budget,
    latency: Latency,
    tokens: float | None,
) -> tuple[Floats, Floats, Floats]:
    """Loss of every shape, its least price over all devices, and its least strain over those that hold it; else inf."""
    shapes, points = list_shapes(grid).shapes, points_of(space)
    least, closest = np.full(len(shapes), np.inf), np.full(len(shapes), np.inf)
    for at in product(*(range(n) for n in points.shape)):
        device = space.device(*(float(axis[i]) for axis, i in zip(points.values, at, strict=True)))
        costs = Pricer(grid.ends, device, asked, latency).costs(shapes)
        strain = np.maximum.reduce(
            [costs.prefill_s / budget.ttft_s, costs.token_s / budget.tpot_s, costs.total_s / budget.total_s]
        )
        holds = costs.memory_bytes <= points.values[2][at[2]]
        least = np.where(holds & (strain <= 1), np.minimum(least, points.price[at]), least)
        if np.isfinite(points.price[at]):
            closest = np.where(holds, np.minimum(closest, strain), closest)
    return law.loss(law.columns(shapes, counts_of(shapes, grid.ends), tokens)).loss, least, closest


def found(done: Chosen) -> list[tuple[float, float, int]]:
    return [(one.price, one.loss, one.row) for one in done.choices]


@pytest.mark.parametrize("seed", range(50))
def test_equals_every_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space, grid = a_space(rng), a_grid(rng)
    law, tokens = (PLAS, None) if rng.random() < 0.6 else (load_law("besiroglu"), 3e10)
    latency: Latency = "full" if rng.random() < 0.7 else "plas"
    asked = Request(
        1 if latency == "plas" else int(rng.integers(1, 5)), 512, 32, float(rng.choice([0.5, 2])), 2
    )
    ttft, tpot = (float(t) for t in rng.choice([0.004, 0.03, 0.1, 0.4, np.inf], 2))
    budget = Budget(ttft, tpot, float(rng.choice([0.6, 3])))
    loss, least, closest = all_pairs(space, grid, law, asked, budget, latency, tokens)
    question = (space, law, grid, asked, budget)
    rows = np.flatnonzero(np.isfinite(least))
    if not len(rows):
        with pytest.raises(NoDeviceError):
            price_front(*question, latency=latency, tokens=tokens)
    else:
        on = rows[front(loss[rows], least[rows])]
        done = price_front(*question, latency=latency, tokens=tokens)
        assert found(done) == [(least[i], loss[i], i) for i in on]
    for wanted in (*np.quantile(loss, [0.0, 0.2, 0.6]), loss.min() - 0.01):
        enough = rows[loss[rows] <= wanted]
        if not len(enough):
            with pytest.raises(NoDeviceError) as raised:
                cheapest(*question, wanted, latency=latency, tokens=tokens)
            said, reached = str(raised.value), loss <= wanted
            if np.isfinite(closest[reached]).any():
                assert f" takes {told(closest[reached].min())} times what" in said
                assert (
                    f"{loss[rows].min():.4f}" in said
                    if len(rows)
                    else "no shape of the grid keeps it" in said
                )
            else:
                assert ("the largest memory is" if reached.any() else "the least loss of the grid is") in said
            continue
        best = min(enough, key=lambda i: (least[i], loss[i], i))
        done = cheapest(*question, wanted, latency=latency, tokens=tokens)
        assert found(done) == [(least[best], loss[best], best)]
        c = done.certificate
        assert sum(c.removed.values()) + c.settled == c.shapes == len(loss)


def test_of_equal_shapes_the_first() -> None:
    """Forty shapes of one loss, which one device serves all: the first of the grid, though others are faster."""
    experts = [(8 * k, k) for k in range(40, 0, -1)]
    grid = GRID.model_copy(update={"layers": (12,), "width": (1536,), "kv_heads": (2,), "ffn_ratio": (1.0,),
                                   "experts": tuple(experts), "rules": ()})  # fmt: skip
    space = DeviceSpace.model_validate(ONE)
    loss = float(PLAS.loss(list_shapes(grid).shapes).loss[0])
    for done in (cheapest(space, PLAS, grid, ASKED, SOON, loss), price_front(space, PLAS, grid, ASKED, SOON)):
        assert [one.row for one in done.choices] == [0]


def test_few_pairs_are_priced() -> None:
    """The paper's grid on the shipped space: 7.9 million pairs, of which the proof needs a thousandth."""
    one = cheapest(EXAMPLE, PLAS, GRID, ASKED, SOON, 3.0)
    whole = price_front(EXAMPLE, PLAS, GRID, ASKED, SOON)
    assert one.certificate.pairs == whole.certificate.pairs == 9520 * 832
    assert one.certificate.priced < 1e-3 * one.certificate.pairs
    assert whole.certificate.priced < 5e-3 * whole.certificate.pairs
    (choice,) = one.choices
    assert (choice.price, choice.loss) in {(c.price, c.loss) for c in whole.choices}
    for looser, asked in ((Budget(0.2, 0.02), 3.0), (SOON, 3.05)):
        assert cheapest(EXAMPLE, PLAS, GRID, ASKED, looser, asked).choices[0].price <= choice.price


@pytest.mark.parametrize(
    ("budget", "loss", "said"),
    [
        (SOON, 2.8, r"the least loss of the grid is 2\.8794, above 2\.8; allow more"),
        (SOON, 2.9, r"loss 2\.9 or less that fits takes \d\.\d+ times what the budget allows; the least loss within it is 2\.92"),
        (Budget(ttft_s=1e-6), 3.0, r"takes 26,\d+ times what the budget allows; no shape of the grid keeps it"),
    ],
)  # fmt: skip
def test_infeasible_says_the_closest_miss(budget: Budget, loss: float, said: str) -> None:
    with pytest.raises(NoDeviceError, match=said) as raised:
        cheapest(EXAMPLE, PLAS, GRID, ASKED, budget, loss)
    assert raised.value.exit_code == 3 and raised.value.certificate.status == "INFEASIBLE"


def test_infeasible_by_memory() -> None:
    small = DeviceSpace.model_validate(ONE | {"memory": ["1 GB"]})
    with pytest.raises(
        NoDeviceError, match=r"smallest shape of loss 3 or less takes .* GiB, the largest memory is"
    ):
        cheapest(small, PLAS, GRID, ASKED, SOON, 3.0)


@pytest.mark.parametrize("loss", [float("nan"), -1, 0, float("inf"), "3", None, True])
def test_a_loss_that_is_none(loss: object) -> None:
    with pytest.raises(InputError, match="the loss to reach is"):
        cheapest(EXAMPLE, PLAS, GRID, ASKED, SOON, loss)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(5))
def test_doors(place: int) -> None:
    question: list[object] = [EXAMPLE, PLAS, GRID, ASKED, SOON]
    question[place] = "a word"
    with pytest.raises(InputError, match="is 'a word'; give a "):
        price_front(*question)  # type: ignore[arg-type]


@pytest.mark.parametrize("latency", ["full", "plas"])
def test_times_never_rise_with_a_rate(latency: Latency) -> None:
    """What every bound rests on, to the last bit: levels a rounding apart and far apart, with shares and launches."""
    rng = np.random.default_rng(0)
    shares = {
        "compute": 0.7,
        "attention": 0.3,
        "bandwidth": 0.6,
        "experts": 0.45,
        "elementwise": 1.3,
        "layer": "7 us",
    }
    space = EXAMPLE.model_copy(update={"decode": Reached.model_validate(shares)})
    rates = 3e13 * np.concatenate(([1.0, 1 + 2e-16, 1 + 3e-16], np.sort(rng.uniform(1, 5, 20))))
    rows = rng.choice(len(list_shapes(GRID).shapes), 300)
    for compute, bandwidth in (
        (rates, np.full(23, 2e11)),
        (np.full(23, 3e13), rates / 100),
        (rates, rates / 100),
    ):
        device = space.device(np.tile(compute, 300), np.tile(bandwidth, 300), 1.0)
        costs = Pricer(GRID.ends, device, ASKED, latency).costs(list_shapes(GRID).shapes[np.repeat(rows, 23)])
        for column in (costs.prefill_s, costs.token_s, costs.total_s):
            assert (np.diff(column.reshape(300, 23), axis=1) <= 0).all()
