"""The pages for what is known: chips, clusters and fabrics, models. `*_data` is the same as plain JSON types."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.hardware.catalog import fabrics, known_clusters
from meshwright.hardware.chip import Chip, Torus, load_chip
from meshwright.hardware.fabric import load_fabric
from meshwright.hardware.figures import Figure, Strict
from meshwright.hardware.units import human_rate
from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, faint, headline, line, table, title


def chips_data(names: Sequence[str]) -> dict[str, Any]:
    """Every figure of every chip with its source, and what one device of it has in SI units."""
    return {
        name: load_chip(name).model_dump(mode="json") | {"device": _device(load_chip(name))} for name in names
    }


def _device(chip: Chip) -> dict[str, Any]:
    return {
        "peak_flop_per_s": {dtype: chip.peak_flop_per_s(dtype) for dtype in chip.peak},
        "memory_bytes": chip.memory_bytes,
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "host_link_bytes_per_s": chip.host_link_bytes_per_s,
        "scale_out_bytes_per_s": chip.scale_out_bytes_per_s,
    }


def chips_page(names: Sequence[str], sources: bool) -> Iterator[Block]:
    """One line per chip; with `sources` also where each figure comes from."""
    yield headline("Chips, per device (what a program sees); rates one way, peaks dense")
    header = ("chip", "devices", "bf16", "fp8", "memory", "HBM", "scale-up", "scale-out", "price")
    units = ("", "a chip", "TFLOP/s", "TFLOP/s", "GiB", "GB/s", "", "GB/s", "USD/chip-h")
    yield table([units, *(_chip_row(load_chip(name)) for name in names)], "lrrrrrlrr", header=header)
    yield faint("memory: usable where a source says, else nominal. price: on-demand list. -: no source.")
    if sources:
        for name in names:
            yield title(name, load_chip(name).title)
            yield table(list(_figures(load_chip(name))), "lll")
            yield from (line(note) for note in load_chip(name).notes)
    else:
        yield faint("--sources lists every figure with its origin; --json prints all of it.")


def _chip_row(chip: Chip) -> tuple[str, ...]:
    up, out = chip.scale_up, chip.scale_out_bytes_per_s
    if isinstance(up, Torus):
        links = f"{up.dims}D torus, {human_rate(up.per_link_one_way.si / chip.devices_per_chip)} a link"
    else:
        links = f"{up.domain.count} joined at {human_rate(up.per_chip_one_way.si / chip.devices_per_chip)}"
    price = chip.price_usd_per_hour
    return (
        chip.name, str(chip.devices_per_chip), _peak(chip, "bf16"), _peak(chip, "fp8"),
        f"{chip.memory_bytes / 2**30:.2f}", f"{chip.hbm_bytes_per_s / 1e9:,.0f}", links,
        "-" if out is None else f"{out / 1e9:g}", "-" if price is None else f"{price:.2f}",
    )  # fmt: skip


def _peak(chip: Chip, dtype: str) -> str:
    return f"{chip.peak_flop_per_s(dtype) / 1e12:,.0f}" if dtype in chip.peak else "-"


def _figures(part: Strict, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(name, value, origin) of every figure and price below `part`."""
    for name in type(part).model_fields:
        yield from _walk(getattr(part, name), f"{path}{name}")


def _walk(value: object, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Figure):
        note = f"; {value.note}" if value.note else ""
        yield path, value.text, f"{value.source} ({value.confidence}){note}"
    elif isinstance(value, Strict):
        price, source = getattr(value, "usd_per_chip_hour", None), getattr(value, "source", None)
        if price is not None:
            yield path, f"{price:g} USD", f"{value.provider}, {value.kind}, {value.date}; {source}"  # type: ignore[attr-defined]
        else:
            yield from _figures(value, f"{path}.")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _walk(item, f"{path}.{number}")


def clusters_data() -> dict[str, Any]:
    return {
        "clusters": [c.model_dump(mode="json") for c in known_clusters()],
        "fabrics": {name: load_fabric(name).model_dump(mode="json") for name in fabrics()},
    }


def clusters_page(sources: bool) -> Iterator[Block]:
    """How a cluster is written, reference systems, and the networks between domains."""
    yield headline("Clusters are written chip:shape[*slices][@fabric]")
    grammar = [
        ("v5p:16x20x28", "one TPU slice: chips along each torus axis"),
        ("v6e:16x16*4", "four slices joined by the data-centre network"),
        ("h100:8x2048", "GPUs per NVLink domain x domains"),
        ("h100:8x64@roce", "another fabric than the chip's default; a YAML file works too"),
        ("v5p-128", "a cloud name: 128 TensorCores = 64 chips"),
    ]
    yield table(grammar, "ll")
    yield title("Reference systems")
    yield table(
        [(c.cluster, c.title, *([c.source] if sources else [])) for c in known_clusters()],
        "lll"[: 2 + sources],
    )
    yield title("Fabrics", "the network beyond a domain or slice")
    made = [load_fabric(name) for name in fabrics()]
    yield table(
        [(f.name, f.summary, *(["; ".join(f.sources())] if sources else [])) for f in made],
        "lll"[: 2 + sources],
    )
    if not sources:
        yield faint("--sources adds where each comes from; --json prints all of it.")


def models_data(names: Sequence[str]) -> dict[str, Any]:
    """Built-in models by name."""
    from meshwright.costmodel.readers import load_model, model_sources

    found = {}
    for name in names:
        model = load_model(name)
        found[name] = {
            "model_type": model.model_type,
            "params": model.params,
            "active_params": model.active_params,
            "layers": model.layers,
            "hidden": model.hidden,
            "vocab": model.vocab,
            "max_seq_len": model.max_seq_len,
            "source": model_sources()[name],
        }
    return found


def models_page(names: Sequence[str], sources: bool) -> Iterator[Block]:
    """One line per model."""
    yield headline(f"{words.plural(len(names), 'built-in model')}; a config.json or its folder works too")
    rows = [
        (
            name, words.size_of(m["params"]),
            words.size_of(m["active_params"]) if m["active_params"] != m["params"] else "",
            str(m["layers"]), str(m["hidden"]), m["model_type"], *([m["source"]] if sources else []),
        )
        for name, m in models_data(names).items()
    ]  # fmt: skip
    header = ("name", "params", "active", "layers", "hidden", "type", *(["source"] if sources else []))
    yield table(rows, "lrrrrll"[: len(header)], header=header)
    if not sources:
        yield faint("--sources adds where each configuration comes from; --json prints all of it.")
