"""`meshwright search`: the answers of the exhaustive run that plas.md 1.6 states, from a board's name, and refusals."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.optimizer.cli import main

ASK = ["search", "--cluster", "jetson-agx-orin-64gb", "--prompt", "1024", "--output", "16"]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Steps of the answer to further words."""

    def ask(*words: str) -> dict[str, Any]:
        assert main([*ASK, *words, "--json"]) == 0
        return {name: step["value"] for name, step in json.loads(capsys.readouterr().out)["steps"].items()}

    return ask


@pytest.mark.parametrize(
    ("budget", "shape", "loss"),
    [
        # plas.md 1.6, at 42.5 TFLOP/s and 204.8 GB/s, FP16, 64 GB; the board has 42.75.
        (("--total", "100ms"), (20, 2560, 16, 1, 0.5, 1), 3.063),
        (("--total", "200ms"), (28, 3072, 16, 1, 0.5, 1), 2.988),
        (("--tpot", "1.25ms"), (12, 1792, 16, 1, 0.25, 2), 3.320),
    ],
)
def test_the_stated_budgets(
    answer: Callable[..., dict[str, Any]], budget: tuple[str, str], shape: tuple[float, ...], loss: float
) -> None:
    found = answer(*budget)
    names = ("layers", "width", "experts", "top_k", "ffn_ratio", "kv_heads")
    assert tuple(found[f"best_{name}"] for name in names) == shape
    assert found["best_loss"] == pytest.approx(loss, abs=5e-4)


def test_the_front_is_that_of_the_whole_grid(answer: Callable[..., dict[str, Any]]) -> None:
    found = answer()
    assert (found["shapes_listed"], found["shapes_priced"], found["front_points"]) == (12600, 9474, 120)
    removed = sum(n for name, n in found.items() if name.startswith("removed_"))
    assert found["shapes_listed"] - removed == found["shapes_priced"]
    assert found["front_moe_share"] == 1.0  # the paper's finding at batch 1


def test_smaller_weights_and_more_memory_are_never_worse(answer: Callable[..., dict[str, Any]]) -> None:
    half, whole = (answer("--total", "100ms", "--weights", w)["best_loss"] for w in ("int8", "bf16"))
    assert half <= whole
    losses = [
        answer("--total", "2s", "--memory", size)["best_loss"] for size in ("1GiB", "4GiB", "16GiB", "60GiB")
    ]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--total", "100"], "--total: '100' has no unit"),
        (["--total", "1us"], "no shape of the grid keeps the budget: the fastest takes"),
        (["--memory", "1MiB"], "no shape of the grid fits"),
        (["--law", "plas"], "unknown loss law 'plas'; did you mean plas-10b"),
        (["--law", "besiroglu"], "besiroglu"),
        (["--grid", "nowhere"], "unknown grid 'nowhere'"),
        (["--cluster", "h100:8x1"], "h100:8x1 has 8 devices, a shape is searched for one"),
    ],
)
def test_refusals(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err, err
