"""What a user of `serve` and of the mode sees: parts of a slice, the page, and every refusal's words."""

import argparse
import re
from functools import lru_cache
from math import inf

import pytest
from served_cases import CLUSTERS

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.serving.layout import network_s
from meshwright.costmodel.setting import ideal_network
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError, MeshwrightError
from meshwright.hardware.network import TorusAxis
from meshwright.optimizer.plan import Infeasible
from meshwright.search.architecture import model_of
from meshwright.search.grid import Grid, list_shapes, load_grid
from meshwright.search.law import load_law
from meshwright.search.served import command
from meshwright.search.served.answer import working
from meshwright.search.served.serve import Serving, serve
from meshwright.search.served.slices import parts_of
from meshwright.search.trained import command as trained_command


@pytest.mark.parametrize("name", CLUSTERS)
def test_parts_of_a_slice(name: str) -> None:
    cluster = parse_cluster(name)
    network = ideal_network(cluster)
    parts = parts_of(network, cluster.devices)
    assert [p.ways * p.replicas for p in parts] == [cluster.devices] * len(parts)
    assert [p.ways for p in parts] == [d for d in range(1, cluster.devices + 1) if cluster.devices % d == 0]
    assert parts[-1].networks == (network,)
    shapes = list_shapes(load_grid("plas")).shapes
    model = model_of(shapes, len(shapes) - 1, load_grid("plas").ends)
    assert parts[-1].decode_s(model, 8) == network_s(model, network, 8)
    assert parts[0].decode_s(model, 8) == parts[0].prefill_s(model, Request(1, 64, 1, 2, 2)) == 0.0


def test_a_part_of_a_ring_is_a_line() -> None:
    network = ideal_network("v5e:16x16")
    assert all(isinstance(level, TorusAxis) and level.wraps for level in network.levels)
    part = next(p for p in parts_of(network, 256) if p.ways == 16)
    whole = [n for n in part.networks if 16 in n.sizes]
    assert len(whole) == 2
    for n in part.networks:
        for level in n.levels:
            assert isinstance(level, TorusAxis)
            assert level.wraps == (level.size == 16)


@lru_cache
def answered() -> Serving:
    asked = Request(1, 8192, 512, 1, 1)
    return serve(
        load_law("plas-10b"), load_grid("plas"), "v5e:4x4", asked, batch=32, tpot_s=0.002, weights="int8"
    )


def test_the_page_says_what_binds() -> None:
    page = working(answered())
    assert page.binds.startswith(
        "tpot: 32 layers of width 3072 (59.66B parameters) would reach a loss of 2.8794"
    )
    assert page.number("t_token") <= 0.002
    assert page.number("tp") * page.number("replicas") == 16
    assert page.number("tokens_per_s_chip") == pytest.approx(
        32 * page.number("replicas") / page.number("t_token") / 16
    )
    assert page.number("pairs_priced") < 0.05 * page.number("choices") * page.number("shapes_listed")


def test_the_page_says_what_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multi-query attention on a switched node: no power of two, one head copied, and the limit that a sequence more passes."""
    grid = Grid(
        source="test", layers=(16,), width=(4096,), head_dim=(128,), kv_heads=(1,), ffn_ratio=(3.0,),
        experts=((1, 1),), vocab=32_000, tied=False, rules=("heads_fill_width",),
    )  # fmt: skip
    law, request = load_law("plas-10b"), Request(1, 1024, 128, 2, 2)
    made = serve(law, grid, "h100:8x1", request, tpot_s=0.01, compute="bf16")
    page, best = working(made), made.best
    batch = best.choice.batch
    assert batch > 1024 and batch & (batch - 1)
    assert f"tpot ends the batch: {batch + 1:,} sequences would take 10" in page.binds
    parts = [n for n in (1, 2, 4, 8) if n != best.choice.part.ways]
    assert len(parts) == 3
    slower = serve(law, grid, "h100:8x1", request, tpot_s=0.01, compute="bf16", batch=batch - 1)
    assert slower.best.tokens_per_s <= best.tokens_per_s
    assert "ends the batch" not in working(slower).binds
    few = serve(law, grid, "h100:8x1", request, tpot_s=0.0013, compute="bf16")
    ways = few.best.choice.part.ways
    assert (
        working(few)
        .notes[0]
        .startswith(f"tp={ways} passes the 1 KV heads, so each is kept on {ways} devices")
    )
    monkeypatch.setattr("meshwright.search.served.find.MOST_BATCH", 64)
    monkeypatch.setattr("meshwright.search.served.serve.MOST_BATCH", 64)
    capped = serve(law, grid, "h100:8x1", request, tpot_s=0.01, compute="bf16")
    assert capped.best.choice.batch == 64
    assert (
        "is the most that is tried, more may make more tokens: ask for it with --batch"
        in working(capped).binds
    )


def test_a_range_of_parameters_binds() -> None:
    asked = (load_law("plas-10b"), load_grid("plas"), "v5e:4x4", Request(1, 8192, 512, 1, 1))
    free, made = (serve(*asked, tpot_s=0.002, weights="int8", params=p) for p in ((0.0, inf), (0.0, 2e9)))
    assert free.outside is None
    assert made.outside is not None and made.outside.params > 2e9
    assert made.outside.loss == float(free.priced.loss[free.best.row])
    assert f"has a loss of {made.outside.loss:.4f} within the limits" in working(made).binds
    assert working(made).binds.startswith("--params: ") and "the grid" not in working(made).binds
    both = serve(*asked, tpot_s=0.0005, weights="int8", params=(1e9, 2e9))
    assert both.outside is not None and both.missed is not None
    assert re.match(
        r"tpot: .* even with tp=\d+; --params binds too: .* within the limits; the answer",
        working(both).binds,
    )


def test_a_looser_limit_never_raises_the_loss() -> None:
    losses = []
    for tpot_s in (0.001, 0.002, 0.004, 0.008, 1.0):
        made = serve(
            load_law("plas-10b"), load_grid("plas"), "v5e:4x4", Request(1, 8192, 512, 1, 1),
            batch=32, tpot_s=tpot_s, weights="int8",
        )  # fmt: skip
        losses.append(float(made.priced.loss[made.best.row]))
    assert losses == sorted(losses, reverse=True)
    assert made.missed is None
    assert working(made).binds.startswith("the grid: no shape of it has less loss")


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"law": "plas-10b"}, InputError, "law is 'plas-10b'; give what load_law gives"),
        ({"law": load_law("besiroglu")}, InputError, "law besiroglu needs tokens"),
        ({"grid": None}, InputError, "grid is None"),
        ({"cluster": 16}, InputError, "cluster is 16"),
        ({"request": (8192, 512)}, InputError, "request is (8192, 512); give a Request("),
        ({"tpot_s": 0.0}, InputError, "tpot is 0.0; give a number above zero"),
        ({"ttft_s": "2s"}, InputError, "ttft is '2s'"),
        ({"batch": 0}, InputError, "batch is 0; give a whole number, at least 1"),
        ({"weights": "int9"}, InputError, "int9"),
        ({"efficiency": 1}, InputError, "efficiency is 1"),
        ({"tpot_s": 2e-5}, Infeasible, "no shape of the grid keeps tpot 20 us and the memory on v5e:4x4; the closest, 4 layers of width "),
        ({"memory_bytes": 1e6}, Infeasible, " of memory where 976.6 KiB are allowed"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(changed: dict[str, object], error: type[Exception], words: str) -> None:
    asked: dict[str, object] = {
        "law": load_law("plas-10b"), "grid": load_grid("plas"), "cluster": "v5e:4x4",
        "request": Request(1, 8192, 512, 1, 1), "batch": 32,
    }  # fmt: skip
    with pytest.raises(error) as told:
        serve(**(asked | changed))  # type: ignore[arg-type]
    assert words in str(told.value)
    assert isinstance(told.value, MeshwrightError)
    assert "\n" not in str(told.value)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--cluster", "--batch", "--head", "--compute", "--efficiency"):
        parser.add_argument(name)
    for name, value in (("--weights", "bf16"), ("--kv", "bf16"), ("--law", "plas-10b"), ("--grid", "plas")):
        parser.add_argument(name, default=value)
    for name, kind in (
        ("--prompt", int),
        ("--output", int),
        ("--tokens", int),
        ("--tpot", float),
        ("--ttft", float),
        ("--memory", int),
    ):
        parser.add_argument(name, type=kind)
    trained_command.add_options(parser)
    command.add_options(parser)
    return parser.parse_args(list(words))


def test_the_mode_of_the_command() -> None:
    asked = ("--serve", "--cluster", "v5e:4x4", "--prompt", "8192", "--output", "512", "--tpot", "0.002")
    args = parsed(*asked, "--batch", "32", "--weights", "int8", "--kv", "int8")
    assert command.wanted(args)
    assert not trained_command.wanted(args)
    page = command.answer(args)
    assert page["best_loss"] == working(answered())["best_loss"]
    assert not command.wanted(parsed())
    with pytest.raises(InputError, match="--serve needs --prompt, --output"):
        command.answer(parsed("--serve", "--cluster", "v5e:4x4"))
