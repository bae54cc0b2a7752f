"""Tables as cases of the laws: which numbers of which chip, engine and kernel price a row, and which shape it has."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.exchanges import OPS, dispatch_wire_bytes, wire_bytes
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.kernel_rates import ANY, load_machines, peak_flop_per_s
from operator_accuracy.tables import Array, Table, hashed

FOLDS = 4
Key = tuple[str, str, str, str]  # chip, engine, kernel, case
DOMAIN_ENGINES = ("nccl", "oneccl")  # libraries with all collectives
CUSTOM_ENGINES = ("sglang", "vllm", "trtllm")  # kernels of their own for all-reduce


@dataclass(frozen=True)
class Cases:
    """Rows of one law, [R].

    Attributes:
        columns: numbers that the law takes. keys: distinct cases; key: index of each row's.
        shape: hash of what is held back together on every chip. seconds: measured.
    """

    law: str
    columns: dict[str, Array]
    keys: tuple[Key, ...]
    key: Array
    shape: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def fold(self) -> Array:
        """The part in which a row is left out."""
        return ((self.shape >> np.uint64(17)) % np.uint64(FOLDS)).astype(int)

    def some(self, rows: Array) -> "Cases":
        """Only some rows, by mask or index."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Cases(self.law, columns, self.keys, self.key[rows], self.shape[rows], self.seconds[rows])


@dataclass(frozen=True)
class Read:
    """Cases of one or more tables, and how many rows were refused why."""

    cases: dict[str, Cases]
    refused: Counter[str]
    rows: int


def cases_of(tables: Sequence[Table]) -> Read:
    """All rows, priced or refused."""
    parts: dict[str, list[Cases]] = {}
    refused: Counter[str] = Counter()
    for table in tables:
        refused["row malformed: cells missing or too many"] += table.ragged
        refused["row malformed: a number is missing or not above 0"] += int((~table.good).sum())
        for cases in _READERS[table.kind](table, table.good, refused):
            if len(cases):
                parts.setdefault(cases.law, []).append(cases)
    rows = sum(table.rows + table.ragged for table in tables)
    return Read({law: _joined(some) for law, some in parts.items()}, +refused, rows)


def _joined(parts: Sequence[Cases]) -> Cases:
    if len(parts) == 1:
        return parts[0]
    keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
    place = {key: i for i, key in enumerate(keys)}
    index = [np.array([place[key] for key in part.keys], int)[part.key] for part in parts]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    joined = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shape", "seconds"))
    return Cases(parts[0].law, columns, keys, np.concatenate(index), *joined)


def _built(
    law: str, table: Table, rows: Array, refused: Counter[str], names: Sequence[str],
    key_of: Callable[..., Key | str], columns: dict[str, Array], shape: Array,
) -> Cases:  # fmt: skip
    """Cases of the rows of a mask; `key_of` makes a case or a reason out of the words and numbers in `names`, per distinct
    combination of them."""
    codes = [table.texts[name] if name in table.texts else _whole(table.numbers[name]) for name in names]
    combined = np.zeros(table.rows, np.int64)
    for code, words in codes:
        combined = combined * len(words) + code
    distinct, first, inverse = np.unique(combined[rows], return_index=True, return_inverse=True)
    counts = np.bincount(inverse, minlength=len(distinct))
    at = np.flatnonzero(rows)[first]
    keys: dict[Key, int] = {}
    place = np.full(len(distinct), -1)
    for i, row in enumerate(at):
        made = key_of(*(words[code[row]] for code, words in codes))
        if isinstance(made, str):
            refused[made] += int(counts[i])
        else:
            place[i] = keys.setdefault(made, len(keys))
    key = place[inverse]
    kept = np.flatnonzero(rows)[key >= 0]
    return Cases(
        law, {name: column[kept] for name, column in columns.items()}, tuple(keys), key[key >= 0], shape[kept],
        table.numbers["time_us"][kept] / 1e6,
    )  # fmt: skip


def _whole(column: Array) -> tuple[Array, tuple[float, ...]]:
    values, codes = np.unique(np.nan_to_num(column), return_inverse=True)
    return codes, tuple(values.tolist())


def _kernel(source: str) -> str:
    """The kernel that a database row names: `aic-vllm-0.24.0:vllm_flash_attn_fa3`."""
    parts = source.split(":")
    return parts[1] if source.startswith("aic-") and len(parts) > 1 and "=" not in parts[1] else ANY


def _fault(chip: str, dtype: str | None = None) -> str | None:
    """Why a row of this chip and number format has no price."""
    if chip not in load_machines().machines:
        return "unknown chip: no peaks, no numbers"
    if dtype is None:
        return None
    if dtype not in load_machines().formats:
        return f"unknown dtype: {dtype}"
    try:
        peak_flop_per_s(chip, dtype)
    except MeshwrightError as error:
        return f"dtype without a peak: {error}"
    return None


def _gemm(table: Table, rows: Array, refused: Counter[str]) -> list[Cases]:
    columns = {name: table.numbers[name] for name in ("m", "n", "k")}

    def key(chip: str, engine: str, dtype: str) -> Key | str:
        return _fault(chip, dtype) or (chip, engine, ANY, dtype)

    shape = hashed(columns["n"], columns["k"])
    return [_built("matmul", table, rows, refused, ("chip", "backend", "dtype"), key, columns, shape)]


def _attention(table: Table, rows: Array, refused: Counter[str]) -> list[Cases]:
    number = table.numbers
    columns = {name: number[name] for name in _ATTENTION}
    latent = _by_word(table, "kind", [word == "mla" for word in table.texts["kind"][1]])
    columns["latent"] = latent
    shape = hashed(*(columns[name] for name in ("batch", "heads", "kv_heads", "head_dim")), latent)
    names = ("chip", "backend", "phase", "kind", "dtype", "kv_dtype", "causal", "source")

    def key_of(law: str) -> Callable[..., Key | str]:
        def key(
            chip: str, engine: str, phase: str, kind: str, dtype: str, kv: str, causal: float, source: str
        ) -> Key | str:
            fault = _fault(chip, dtype) or (kv not in load_machines().formats and f"unknown dtype: {kv}")
            case = f"{dtype}/{kv}{' latent' if kind == 'mla' else ''}"
            mask = " causal" if causal else " full"
            return fault or (chip, engine, _kernel(source), case + (mask if law == "prefill" else ""))

        return key

    words = table.texts["phase"][1]
    of = {law: _by_word(table, "phase", [word == law for word in words]) for law in ("prefill", "decode")}
    refused["attention phase without a law"] += int((rows & ~of["prefill"] & ~of["decode"]).sum())
    return [
        _built(law, table, rows & mask, refused, names, key_of(law), columns, shape)
        for law, mask in of.items()
    ]


_ATTENTION = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")


def _moe(table: Table, rows: Array, refused: Counter[str]) -> list[Cases]:
    names = ("tokens", "hidden", "ffn", "experts", "topk", "ep", "tp")
    columns = {name: table.numbers[name] for name in names}
    columns["skewed"] = _by_word(
        table, "distribution", [w != "balanced" for w in table.texts["distribution"][1]]
    )
    columns["plain"] = _by_word(table, "source", ["nongated" in word for word in table.texts["source"][1]])
    shape = hashed(*(columns[name] for name in names[1:]))

    def key(chip: str, engine: str, dtype: str, distribution: str, source: str) -> Key | str:
        if distribution != "balanced" and not distribution.startswith("power_law"):
            return f"no routed block: {distribution}"
        return _fault(chip, dtype) or (chip, engine, _kernel(source), dtype)

    words = ("chip", "backend", "dtype", "distribution", "source")
    return [_built("experts", table, rows, refused, words, key, columns, shape)]


def _collective(table: Table, rows: Array, refused: Counter[str]) -> list[Cases]:
    size, ranks, nodes = (table.numbers[name] for name in ("bytes", "ranks", "nodes"))
    told = [_told(word) for word in table.texts["source"][1]]
    top_k, processors = (_by_word(table, "source", [one[i] for one in told]) for i in (0, 1))
    whole = _by_word(table, "dtype", [word.startswith("int") for word in table.texts["dtype"][1]])
    routed = _by_word(table, "op", [word.startswith("moe_") for word in table.texts["op"][1]])
    wire = np.full(table.rows, np.nan)
    for code, op in enumerate(table.texts["op"][1]):
        if op in OPS:
            mask = table.texts["op"][0] == code
            wire[mask] = wire_bytes(op, size[mask], ranks[mask])
    refused["unknown collective"] += int((rows & ~routed & np.isnan(wire)).sum())
    silent = routed & (top_k == 0)
    refused["dispatch whose source states no top-k"] += int((rows & silent).sum())
    straight = rows & np.isfinite(wire)
    inside = straight & (nodes == 1)
    engines = table.texts["backend"][1]
    inside &= _by_word(table, "backend", [word in DOMAIN_ENGINES for word in engines])
    custom = straight & _by_word(table, "backend", [word in CUSTOM_ENGINES for word in engines])
    group = {"wire": wire, "ranks": ranks, "whole": whole}
    group["reduces"] = _by_word(table, "op", [word == "all_reduce" for word in table.texts["op"][1]])
    group["nvlink"] = _by_word(
        table, "network", [word.startswith("nvlink") for word in table.texts["network"][1]]
    )
    throughput = ~_by_word(table, "op", [word.endswith("_ll") for word in table.texts["op"][1]])
    throughput &= ~_by_word(table, "backend", [word.endswith("_ll") for word in table.texts["backend"][1]])
    within = np.where(nodes > 1, nodes, ranks)  # across nodes a token crosses once for each node
    sent = {
        "wire": dispatch_wire_bytes(size, within, np.maximum(top_k, 1), throughput),
        "processors": np.where(processors > 0, processors, np.inf),
    }

    def key(
        chip: str, engine: str, network: str, op: str, ranks: float, nodes: float, dtype: str, source: str
    ) -> Key:
        whole = op == "all_reduce" and dtype.startswith("int")
        case = f"{op} {ranks:.0f}x{nodes:.0f}{' int8' if whole else ''}"
        return chip, f"{engine} {network}", _kernel(source), case

    def domain_key(chip: str, engine: str, network: str) -> Key:
        return chip, f"{engine} {network}", ANY, "all"

    words = ("chip", "backend", "network", "op", "ranks", "nodes", "dtype", "source")
    sizes = hashed(size)
    return [
        _built("collective", table, straight & ~custom, refused, words, key, group, sizes),
        _built("custom", table, custom, refused, words, key, group, sizes),
        _built("domain", table, inside, Counter(), ("chip", "backend", "network"), domain_key, group, sizes),
        _built("dispatch", table, rows & routed & ~silent, refused, words, key, sent, hashed(size, top_k)),
    ]


def _by_word(table: Table, name: str, values: Sequence[Any]) -> Array:
    """A column of what each word of a text column means."""
    return np.array([*values, values[0] if values else False])[table.texts[name][0]]


def _told(source: str) -> tuple[float, float]:
    """Top-k and processors that the source of a dispatch states; 0 where it does not."""
    found = (re.search(rf"(?:^|:){name}=(\d+)", source) for name in ("k", "sms"))
    top_k, processors = (float(one.group(1)) if one else 0.0 for one in found)
    return top_k, processors


def _memory(table: Table, rows: Array, refused: Counter[str]) -> list[Cases]:
    def key(chip: str, engine: str, op: str) -> Key | str:
        return _fault(chip) or (chip, engine, ANY, op)

    columns = {"bytes": table.numbers["bytes"]}
    shape = hashed(table.numbers["rows"], table.numbers["cols"])
    return [_built("memory", table, rows, refused, ("chip", "backend", "op"), key, columns, shape)]


_READERS = {
    "gemm": _gemm, "attention": _attention, "moe": _moe, "collective": _collective, "memory": _memory,
}  # fmt: skip
