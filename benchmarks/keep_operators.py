"""Makes benchmarks/data/operators/*.csv.gz out of a folder of operator tables: `python benchmarks/keep_operators.py FOLDER`.

Kept is a row if the hash of its shape (all whole numbers of the row that say what was run, not where) falls in a share of
the range, so that a shape is kept or not on every chip and engine alike, and the sizes keep their spread; of a combination
of chip, engine, kernel and number format with fewer than `ALL_BELOW` rows all are kept. Rows under a share-alike licence are
left out. Times are rounded to four digits, sources cut to what names their licence and kernel.
"""

import argparse
import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from operator_accuracy.shipped import SHIPPED
from operator_accuracy.tables import KINDS, TEXT, Table, hashed, read_tables

SHARE = {"gemm": 0.22, "attention": 0.2, "moe": 0.17, "collective": 1.0, "memory": 0.25}
ALL_BELOW = 60
SHARE_ALIKE = ("mamf", "ml-engineering")


def kept(table: Table) -> Iterator[list[str]]:
    """The lines of what is kept, the header first."""
    columns = [*KINDS[table.kind], "source"]
    yield columns
    shape = [name for name in KINDS[table.kind] if name not in TEXT and name != "time_us"]
    hashes = hashed(*(np.nan_to_num(table.numbers[name]) for name in shape))
    chosen = (hashes >> np.uint64(40)).astype(float) / 2**24 < SHARE[table.kind]
    sources = [_short(source) for source in table.texts["source"][1]]
    cells = {name: table.words(name) for name in table.texts}
    cells["source"] = [sources[code] for code in table.texts["source"][0]]
    groups = [
        tuple(cells[name][row] for name in cells if name != "distribution") for row in range(table.rows)
    ]
    few = Counter(groups)
    for row in np.flatnonzero(table.good):
        if not (chosen[row] or few[groups[row]] < ALL_BELOW) or cells["source"][row].startswith(SHARE_ALIKE):
            continue
        yield [
            cells[name][row] if name in cells else _number(table.numbers[name][row], name) for name in columns
        ]


def _number(value: float, name: str) -> str:
    return f"{value:.4g}" if name == "time_us" else f"{value:.0f}"


def _short(source: str) -> str:
    """`aic-vllm-0.24.0:kernel` without the version, so that repeated runs stand together; of others the first word, with
    what a dispatch states of top-k and processors."""
    source = re.sub(r"^(aic-[a-z]+)-[0-9][^:]*", r"\1", source)
    told = re.findall(r"(?<=:)(?:k|sms)=\d+", source)
    parts = source.split(":")
    return ":".join(
        [parts[0], *(told or ([parts[1]] if parts[0].startswith("aic-") and len(parts) > 1 else []))]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    for table in read_tables(parser.parse_args().folder):
        text = io.StringIO()
        rows = list(kept(table))
        csv.writer(text, lineterminator="\n").writerows([rows[0], *sorted(rows[1:])])
        data = gzip.compress(text.getvalue().encode("utf-8"), 9, mtime=0)
        (SHIPPED / f"{table.kind}.csv.gz").write_bytes(data)
        print(f"{table.kind}: {len(rows) - 1} of {table.rows} rows, {len(data)} bytes")


if __name__ == "__main__":
    main()
