"""Tables at the widths of terminals: no number, name or word is cropped or broken."""

import random

import pytest

from meshwright.costmodel.working import Step, Working
from meshwright.optimizer.report import page
from meshwright.optimizer.report.columns import bands
from meshwright.optimizer.report.page import bullet, render, table
from meshwright.optimizer.report.working import working_page

WIDTHS = range(page._NARROWEST, page.WIDTH + 1, 5)


def drawn(rng: random.Random) -> tuple[list[tuple[str, ...]], str, tuple[str, ...]]:
    """A table of up to 20 columns: numbers with units, names, sentences."""
    columns = rng.randint(1, 20)
    align = "".join(rng.choice("llrrrb") for _ in range(columns))

    def cell(side: str, n: int) -> str:
        if side == "l":
            return " ".join(f"w{n}{'x' * rng.randint(0, 12)}" for _ in range(rng.choice((0, 1, 1, 8, 25))))
        return f"{n}{rng.randint(0, 10 ** rng.randint(1, 9)):,}" + rng.choice(("", "~GB/s", ".25~TFLOP/s"))

    rows = [tuple(cell(side, n) for side in align) for n in range(rng.randint(1, 5))]
    header = tuple(f"name{n}{'y' * rng.randint(0, 8)}" for n in range(columns)) if rng.random() < 0.7 else ()
    return rows, align, header


@pytest.mark.parametrize("seed", range(25))
def test_every_cell_of_any_table_is_whole_at_every_width(seed: int) -> None:
    rows, align, header = drawn(random.Random(seed))
    wanted = sorted(word for row in (header, *rows) for cell in row for word in cell.split())
    for width in WIDTHS:
        text = render([table(rows, align, header)], width)
        assert max(map(len, text.splitlines())) <= width
        got = {word.rstrip(":") for word in text.split()}
        assert got == set(wanted), width


def front(columns: int) -> Working:
    names = (
        "price",
        "compute",
        "bandwidth",
        "memory",
        "kv_heads",
        "experts",
        "own_best_loss",
        "choice_in_box",
    )
    row = {
        f"{names[n % len(names)]}{n // len(names) or ''}": (165.4, "204.8 GB/s", 1_048_576)[n % 3]
        for n in range(columns)
    }
    given = {
        "model": Step(
            "l24-d2304-h18-kv1x128-e16k1-f1152", "", "= prompt * output", "a note of several words" * 4
        )
    }
    return Working("what?", given, {"pairs_priced": Step(1e5, "FLOP/s")}, "nothing", (), (row, row))  # fmt: skip


@pytest.mark.parametrize("columns", [1, 2, 8, 13, 16, 30])
def test_the_page_of_a_working_breaks_no_word(columns: int) -> None:
    whole = set(render(working_page(front(columns)), 2000).split())
    for width in WIDTHS:
        assert set(render(working_page(front(columns)), width).split()) == whole, width


def test_a_bullet_keeps_every_character_of_a_word_longer_than_the_line() -> None:
    layout = "recompute=" + ";".join(f"save(norm1+qkv)*{n}|none*{n}" for n in range(9))
    for width in WIDTHS:
        assert layout in render([bullet(f"--layout {layout} fits")], width).replace("\n   ", "").replace(
            " ", ""
        )


def test_a_wide_table_repeats_its_first_column_below() -> None:
    rows = [("165.4", "10 TFLOP/s", "204.8 GB/s"), ("186", "40 TFLOP/s", "102 GB/s")]
    assert render([table(rows, "lrr", ("price", "compute", "bandwidth"))], 24) == (
        "  price     compute\n  165.4  10 TFLOP/s\n  186    40 TFLOP/s\n"
        "  price   bandwidth\n  165.4  204.8 GB/s\n  186      102 GB/s\n"
    )
    assert render([table(rows, "lrr", ("price", "compute", "bandwidth"))], 33) == (
        "  price     compute   bandwidth\n  165.4  10 TFLOP/s  204.8 GB/s\n  186    40 TFLOP/s    102 GB/s\n"
    )
    assert render([table(rows[:1], "lrr", ("price", "compute", "bandwidth"))], 16) == (
        "  price: 165.4\n    compute: 10\n    TFLOP/s\n    bandwidth:\n    204.8 GB/s\n"
    )


def test_bands_by_hand() -> None:
    shape = [(band.columns, band.widths, band.gap) for band in bands([5, 40, 6], [5, 10, 6], 30)]
    assert shape == [((0, 1, 2), (5, 15, 6), 2)]
    assert [band.gap for band in bands([5, 5, 6], [5, 5, 6], 18)] == [1]
    assert [band.columns for band in bands([5, 5, 6], [5, 5, 6], 16)] == [(0, 1), (0, 2)]
    assert bands([5, 12], [5, 12], 16) == ()
