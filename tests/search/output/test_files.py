"""Tables, plots and config.json that `meshwright search` writes: what is in them, and what a wrong place does."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.costmodel.inference import seconds
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import InputError, MissingExtraError
from meshwright.optimizer.cli import main
from meshwright.search.asked import Budget, Searched, search_shapes
from meshwright.search.board import board_of
from meshwright.search.output.config import write_configs
from meshwright.search.output.plot import draw_front
from meshwright.search.output.table import check_parquet, columns_of, write_csv, write_parquet

ASK = [
    "search",
    "--cluster",
    "jetson-orin-nano-8gb",
    "--prompt",
    "256",
    "--output",
    "32",
    "--weights",
    "int8",
]


@pytest.fixture(scope="module")
def found() -> Searched:
    device = board_of("jetson-orin-nano-8gb", weights="int8").device
    budgets = (Budget(total_s=0.2), Budget(total_s=1e-9), Budget(total_s=0.5))
    return search_shapes("plas-10b", "plas", device, Request(1, 256, 32, 1, 2), *budgets)


def test_a_table_has_every_priced_shape_and_says_which_are_chosen(found: Searched, tmp_path: Path) -> None:
    write_csv(tmp_path / "all.csv", columns_of(found))
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.shapes) > 8000
    assert sum(row["on_front"] == "true" for row in rows) == len(found.on_front)
    assert {row["best"]: n for n, row in enumerate(rows) if row["best"] != "0"} == {
        "1": found.best[0],
        "3": found.best[2],
    }
    for n in (0, found.best[0], len(rows) - 1):
        assert n is not None
        row = rows[n]
        assert int(row["params"]) == found.counts.params[n] and int(row["layers"]) == found.shapes.layers[n]
        assert float(row["loss"]) == pytest.approx(float(found.loss[n]), rel=1e-9)
        assert float(row["total_s"]) == pytest.approx(float(found.costs.total_s[n]), rel=1e-9)
    before = (tmp_path / "all.csv").read_bytes()
    write_csv(tmp_path / "all.csv", columns_of(found))
    assert (tmp_path / "all.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]


def test_parquet_holds_the_same_columns_with_their_types(found: Searched, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `table` is not installed")
    columns = columns_of(found)
    write_parquet(tmp_path / "all.parquet", columns)
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.column_names == list(columns)
    for name, column in columns.items():
        np.testing.assert_array_equal(table[name].to_numpy(), column)


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("pyarrow", lambda path, _: check_parquet()),
        ("matplotlib", lambda path, found: draw_front(path, found, "x")),
    ],
)
def test_a_missing_part_is_named_with_its_extra(
    part: str,
    call: Callable[[Path, Any], None],
    found: Searched,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright\[(table|plot)\]'") as told:
        call(tmp_path / "front.svg", found)
    assert told.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_the_same_bytes_for_the_same_search(suffix: str, found: Searched, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    files = [tmp_path / f"{n}.{suffix}" for n in range(2)]
    for file in files:
        draw_front(file, found, "a board")
    assert files[0].read_bytes() == files[1].read_bytes() != b""
    if suffix == "svg":
        text = files[0].read_text()
        assert f"front, {len(found.on_front)} shapes" in text and "best at total 200 ms" in text


def test_the_command_writes_what_it_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {
        name: str(tmp_path / file)
        for name, file in (("csv", "a.csv"), ("plot", "a.svg"), ("config", "found"))
    }
    words = [f"--{name}={place}" for name, place in places.items()]
    assert main([*ASK, "--budgets", "100ms,200ms", *words, "--json"]) == 0
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    chosen = [row for row in rows if row["on_front"] == "true" or row["best"] != "0"]
    folders = sorted(path.name for path in (tmp_path / "found").iterdir())
    assert len(folders) == len(chosen) > 50
    # a file's text agrees with the table's row, read by the reader of configurations
    counts = {load_model(tmp_path / "found" / name).params for name in folders}
    assert counts == {int(row["params"]) for row in chosen}
    assert (
        "meshwright search on jetson-orin-nano-8gb by plas-10b"
        in (tmp_path / "found" / folders[0] / "config.json").read_text()
    )


def test_a_written_config_costs_what_its_row_says(found: Searched, tmp_path: Path) -> None:
    """The reader of configurations and the one-model cost model, against the columns that the search priced."""
    rows = [int(i) for i in found.on_front[::7]]
    device, request = found.device, found.request
    for row, path in zip(
        rows, write_configs(tmp_path, found.shapes, rows, found.grid.ends, 288), strict=True
    ):
        stack = Stack.of(load_model(path))
        assert seconds.prefill_s(stack, device, request) == pytest.approx(float(found.costs.prefill_s[row]))
        assert seconds.token_s(stack, device, request) == pytest.approx(float(found.costs.token_s[row]))
        memory = sum(seconds.memory_bytes(stack, request).values())
        assert memory == pytest.approx(float(found.costs.memory_bytes[row]))
        law = found.priced.law
        assert float(law.loss(found.shapes[np.array([row])]).loss[0]) == pytest.approx(float(found.loss[row]))


def test_places_that_take_no_file(found: Searched, tmp_path: Path) -> None:
    for place, told in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "a.csv", "no folder"),
        ("", "is empty"),
    ):
        with pytest.raises(InputError, match=told):
            write_csv(place, columns_of(found))
