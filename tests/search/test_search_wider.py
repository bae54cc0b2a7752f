"""`meshwright search` beyond one listed grid: large grids, several devices, several laws, other modes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import InputError, MeshwrightError
from meshwright.optimizer.cli import main
from meshwright.search.asked import Against, Budget, search_shapes
from meshwright.search.board import board_of
from meshwright.search.grid import load_grid
from meshwright.search.price import Latency
from meshwright.search.proven import prove_shapes

ASK = ["search", "--cluster", "jetson-agx-orin-64gb", "--prompt", "1024", "--output", "16"]
Ask = Callable[..., dict[str, Any]]

LARGE = """
source: made for this test
layers: {from: 2, to: 40, step: 2}
width: {from: 512, to: 4096, step: 128}
head_dim: [64, 128]
kv_heads: [1, 2, 4, 8]
ffn_ratio: [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4]
experts: [[1, 1], [8, 1], [16, 1], [16, 2], [64, 4]]
shared: [0, 1]
vocab: 65536
tied: false
rules: [heads_fill_width, kv_heads_divide_heads, whole_expert_width, shared_beside_experts]
"""


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return asked


@pytest.mark.parametrize("latency", ["full", "plas"])
@pytest.mark.parametrize("against", ["total", "ttft", "tpot", "memory"])
def test_the_engine_answers_as_the_listing(latency: Latency, against: Against) -> None:
    device = board_of("jetson-orin-nano-8gb", weights="int8").device
    budgets = (Budget(total_s=0.3), Budget(tpot_s=1e-9), Budget(ttft_s=0.05, memory_bytes=2e9))
    words = ("plas-10b", "plas", device, Request(1, 512, 16, 1, 2), *budgets)
    listed = search_shapes(*words, latency=latency, against=against)
    proven = prove_shapes(*words, latency=latency, against=against)
    on = listed.on_front
    assert proven.on_front.tolist() == list(range(len(on)))
    for name in ("layers", "width", "kv_heads", "experts", "top_k", "ffn_ratio"):
        a, b = getattr(listed.shapes, name), getattr(proven.shapes, name)
        np.testing.assert_array_equal(a[on], b[: len(on)])
        for i, j in zip(listed.best, proven.best, strict=True):
            assert (i is None) == (j is None)
            if i is not None and j is not None:
                assert a[i] == b[j]
    assert all(c.status == "OPTIMAL" for c in proven.certificates) and listed.certificates == ()
    with pytest.raises(MeshwrightError, match="limit") as told:
        prove_shapes("plas-10b", "plas", device, Request(1, 512, 16, 1, 2), Budget(tpot_s=1e-9))
    assert told.value.exit_code == 3


def test_a_large_grid_is_proven_and_says_what_its_files_hold(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(LARGE)
    size = load_grid(tmp_path / "large.yaml").size
    assert size > 50_000
    found = ask(
        *ASK, "--grid", str(tmp_path / "large.yaml"), "--total", "100ms", "--csv", str(tmp_path / "a.csv")
    )
    steps = found["steps"]
    assert (steps["certificate"]["value"], steps["shapes_listed"]["value"]) == ("OPTIMAL", size)
    assert steps["shapes_priced"]["value"] < 0.1 * size
    assert any("the table has the front and the best alone" in note for note in found["notes"])
    rows = len((tmp_path / "a.csv").read_text().splitlines()) - 1
    assert steps["front_points"]["value"] <= rows <= steps["front_points"]["value"] + 1
    row = found["table"][0]
    assert {"head_dim", "shared"} <= set(row) and row["loss"] == pytest.approx(
        steps["best_loss"]["value"], abs=1e-4
    )


def test_a_listing_that_would_not_end_points_to_the_engine(tmp_path: Path) -> None:
    (tmp_path / "huge.yaml").write_text(
        LARGE.replace("step: 2}", "step: 1}").replace("step: 128}", "step: 8}")
    )
    device = board_of("apple-m1").device
    with pytest.raises(InputError, match=r"\d+,\d+,\d+ rows, more than the 2,000,000 .*prove_shapes"):
        search_shapes("plas-10b", tmp_path / "huge.yaml", device, Request(1, 64, 4, 2, 2))


def test_the_widest_table_shows_every_digit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = LARGE.replace("step: 2}", "step: 19}").replace("step: 128}", "step: 1792}")
    (tmp_path / "large.yaml").write_text(few)
    words = [*ASK, "--grid", str(tmp_path / "large.yaml"), "--total", "100ms"]
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["table"][0]
    assert main(words) == 0
    page = capsys.readouterr().out.splitlines()
    head = next(n for n, line in enumerate(page) if line.split()[:2] == ["best", "layers"])
    names, words = page[head].split(), page[head + 1].replace(",", "").split()
    assert sorted(names) == sorted(row)
    assert [float(word) for word in words] == pytest.approx([float(row[name]) for name in names], rel=1e-3)
    assert all(len(line) <= 110 for line in page)


def test_several_devices_have_a_front_each_and_one_shape_for_all(ask: Ask) -> None:
    names = "jetson-agx-orin-64gb,rtx-4090"
    found = ask("search", "--cluster", names, "--prompt", "512", "--output", "16", "--total", "200ms")
    for name in names.split(","):
        alone = ask("search", "--cluster", name, "--prompt", "512", "--output", "16", "--total", "200ms")
        assert found["steps"][f"front_{name}"]["value"] == alone["steps"]["front_points"]["value"]
    best = [row["loss"] for row in found["table"] if row["row"] == "best"]
    assert len(best) == 2 and "one shape for all" in found["binds"]


def test_other_laws_are_model_risk_and_never_on_one_front(ask: Ask) -> None:
    found = ask(*ASK, "--total", "100ms", "--tokens", "10B", "--laws", "gemstones-wdpt,besiroglu")
    for name in ("gemstones-wdpt", "besiroglu"):
        step = found["steps"][f"regret_{name}"]
        assert (
            step["value"] >= 0 and "its rank of the choice: " in step["note"] and "Spearman" in step["note"]
        )
        assert f"{name} at such " in found["notes"][1]
    assert found["notes"][0].startswith("model risk: of 2 other laws")
    alone = ask(*ASK, "--total", "100ms", "--tokens", "10B")
    assert alone["table"] == found["table"]


def test_measured_rates_give_their_band(ask: Ask) -> None:
    ideal, edge = (ask(*ASK, "--total", "300ms", "--efficiency", name) for name in ("ideal", "edge"))
    assert edge["steps"]["best_loss"]["value"] >= ideal["steps"]["best_loss"]["value"]
    assert edge["given"]["W"]["value"] < ideal["given"]["W"]["value"]
    assert any(note.startswith("80% of measured times lie within a factor") for note in edge["notes"])
    assert "part_launch" in edge["steps"]


def test_a_trained_shape_is_written_too(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text(
        LARGE.replace("step: 2}", "step: 19}").replace("step: 128}", "step: 1792}").replace("[0, 1]", "[0]")
    )
    words = [
        "--train-tokens",
        "20B",
        "--deadline",
        "30d",
        "--law",
        "besiroglu",
        "--grid",
        str(tmp_path / "few.yaml"),
    ]
    found = ask("search", "--cluster", "h100:8x1", *words, "--config", str(tmp_path / "trained"))
    counts = [load_model(path).params for path in (tmp_path / "trained").iterdir()]
    assert found["steps"]["best_params"]["value"] in counts
    ranked = len(found["table"]) or 1
    assert len(counts) == ranked


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--laws", "plas-10b"], "law plas-10b is named twice"),
        (["--laws", "besiroglu"], "law besiroglu needs tokens"),
        (["--laws", ","], "unknown loss law ''"),
        (["--loss", "3"], "--loss is reached by a device of --device-space or by one of several"),
        (
            ["--device-space", "example", "--csv", "a.csv"],
            "--csv is not read with --device-space; leave it out",
        ),
        (["--cluster", "apple-m1,apple-m1"], "--cluster names a device twice"),
        (["--cluster", "apple-m1,apple-m2", "--plot", "a.svg"], "--plot is of a search on one device"),
        (["--cluster", "apple-m1,"], "cluster"),
        (
            ["--efficiency", "edge", "--cluster", "v5e:1x1"],
            "efficiency edge knows no device of architecture",
        ),
        (["--device-space", "example", "--train-tokens", "1T"], "ask different questions; ask one at a time"),
        (["--params", "1B..2B"], "--params is of --train-tokens, which is not given"),
        (
            ["--train-tokens", "1T", "--deadline", "30d"],
            "--prompt is not read with --train-tokens; leave it out",
        ),
    ],
)
def test_refusals(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err, err


@pytest.mark.parametrize("find", [search_shapes, prove_shapes])
def test_a_cost_read_off_a_file_is_a_budget_that_its_own_shape_keeps(find: Callable[..., Any]) -> None:
    board, request = board_of("jetson-agx-orin-64gb", weights="int8"), Request(1, 1024, 16, 1, 2)
    whole = search_shapes("plas-10b", "plas", board.device, request)
    points = whole.on_front[::25]
    budgets = [Budget(total_s=float(f"{whole.costs.total_s[row]:.10g}")) for row in points]
    found = find("plas-10b", "plas", board.device, request, *budgets)
    assert [found.loss[row] for row in found.best] == pytest.approx([whole.loss[row] for row in points])
