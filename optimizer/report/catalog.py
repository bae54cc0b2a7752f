"""The pages for what is known: chips, clusters and fabrics, models. `*_data` is the same as plain JSON types."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.hardware.catalog import boards, fabrics, known_clusters
from meshwright.hardware.chip import Chip, Torus, load_chip
from meshwright.hardware.fabric import load_fabric
from meshwright.hardware.figures import Figure, Strict
from meshwright.hardware.units import human_rate
from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, bullet, faint, headline, line, table, title


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
        "power_w": None if chip.power is None else chip.power.si / chip.devices_per_chip,
    }


def chips_page(names: Sequence[str], sources: bool) -> Iterator[Block]:
    """One line per chip; with `sources` also where each figure comes from."""
    together = [name for name in names if not load_chip(name).is_board]
    alone = [name for name in names if load_chip(name).is_board]
    if together:
        yield from _together(together)
    if alone:
        yield from _alone(alone)
    if sources:
        for name in names:
            yield title(name, load_chip(name).title)
            yield table(list(_figures(load_chip(name))), "lll")
            yield from (line(note) for note in load_chip(name).notes)
    else:
        yield faint("--sources lists every figure with its origin; --json prints all of it.")


def _together(names: Sequence[str]) -> Iterator[Block]:
    """Chips that clusters are made of."""
    yield headline("Chips, per device (what a program sees); rates one way, peaks dense")
    header = ("chip", "devices", "bf16", "fp8", "memory", "HBM", "scale-up", "scale-out", "power", "price")
    units = ("", "a chip", "TFLOP/s", "TFLOP/s", "GiB", "GB/s", "", "GB/s", "W/chip", "USD/chip-h")
    yield table([units, *(_chip_row(load_chip(name)) for name in names)], "lrrrrrlrrr", header=header)
    yield faint(
        "memory: usable where a source says, else nominal. scale-up: of a torus one link. power: what a chip may draw. "
        "price: on-demand list. -: no source."
    )


def _alone(names: Sequence[str]) -> Iterator[Block]:
    """Edge boards and consumer devices."""
    yield headline("Boards: edge boards and consumer devices, one chip without a network; peaks dense")
    dtypes = ("bf16", "fp16", "fp8", "fp4", "int8")
    header = ("board", *dtypes, "memory", "bandwidth", "power")
    units = ("", *("TOP/s" if d == "int8" else "TFLOP/s" for d in dtypes), "GiB", "GB/s", "W")
    rows = [
        (
            chip.name, *(_peak(chip, dtype, ",.4g") for dtype in dtypes), f"{chip.memory_bytes / 2**30:.2f}",
            f"{chip.hbm_bytes_per_s / 1e9:g}", "-" if chip.power is None else f"{chip.power.si:g}",
        )
        for chip in map(load_chip, names)
    ]  # fmt: skip
    yield table([units, *rows], "lrrrrrrrr", header=header)
    yield faint(
        "memory: nominal, of the largest configuration; shared with the CPU where the board has one memory. power: what it "
        "may draw. -: no source."
    )


def _chip_row(chip: Chip) -> tuple[str, ...]:
    up, out = chip.scale_up, chip.scale_out_bytes_per_s
    if isinstance(up, Torus):
        links = f"{up.dims}D torus, {human_rate(up.per_link_one_way.si / chip.devices_per_chip)}"
    else:
        links = f"{up.domain.count} joined at {human_rate(up.per_chip_one_way.si / chip.devices_per_chip)}"
    price = chip.price_usd_per_hour
    return (
        chip.name, str(chip.devices_per_chip), _peak(chip, "bf16"), _peak(chip, "fp8"),
        f"{chip.memory_bytes / 2**30:.2f}", f"{chip.hbm_bytes_per_s / 1e9:,.0f}", links,
        "-" if out is None else f"{out / 1e9:g}",
        "-" if chip.power is None else f"{chip.power.si:g}", "-" if price is None else f"{price:.2f}",
    )  # fmt: skip


def _peak(chip: Chip, dtype: str, form: str = ",.0f") -> str:
    return format(chip.peak_flop_per_s(dtype) / 1e12, form) if dtype in chip.peak else "-"


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
        "boards": [{"cluster": name, "title": load_chip(name).title} for name in boards()],
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
        ("jetson-agx-orin-64gb", "a board: one chip, no shape, no network"),
    ]
    yield table(grammar, "ll")
    yield title("Reference systems")
    yield table(
        [(c.cluster, c.title, *([c.source] if sources else [])) for c in known_clusters()],
        "lll"[: 2 + sources],
    )
    yield title("Boards", "each a cluster of one by its name; figures: meshwright chips")
    yield table(
        [
            (chip.name, chip.title, *(["; ".join(chip.sources())] if sources else []))
            for chip in map(load_chip, boards())
        ],
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


def models_called(words_: Sequence[str]) -> list[str]:
    """For each word: the built-in model of that name, or all whose names hold it, or else a path to read."""
    from meshwright.costmodel.readers import model_names

    known = model_names()
    found: dict[str, None] = dict.fromkeys([] if words_ else known)
    for word in words_:
        name = word.lower()
        parts = [name] if name in known else [k for k in known if name in k]
        found |= dict.fromkeys(parts or [word])
    return list(found)


def models_data(names: Sequence[str]) -> dict[str, Any]:
    """Facts of models by name; a path stands under itself."""
    return {name: _facts(name) for name in names}


def _facts(name: str) -> dict[str, Any]:
    from meshwright.costmodel.readers import load_model, model_sources

    model = load_model(name)
    return {
        "model_type": model.model_type,
        "params": model.params,
        "active_params": model.active_params,
        "embedding_params": sum(w.params for w in model.embedding),
        "head_params": sum(w.params for w in model.head),
        "tied": model.tied,
        "layers": model.layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_seq_len": model.max_seq_len,
        "mtp": model.mtp
        and {
            "modules": model.mtp.modules,
            "params": model.mtp_params,
            "stored_params": model.mtp_stored_params,
        },
        "tower": model.tower
        and {
            "params": model.tower_params,
            "layers": model.tower.layers,
            "patches": model.tower.patches,
            "tokens": model.tower.tokens,
        },
        "kinds": [
            {
                "name": kind.name,
                "layers": layers,
                "params": kind.params,
                "active_params": kind.active_params,
                **asdict(kind.attention),
                **{f"ffn_{key}": value for key, value in asdict(kind.ffn).items()},
            }
            for kind, layers in zip(model.kinds, model.layers_by_kind, strict=True)
        ],
        "notes": list(model.notes),
        "source": model_sources().get(name, name),
    }


def model_page(name: str) -> Iterator[Block]:
    """Everything that is known of one model."""
    m = _facts(name)
    yield headline(f"{name}: {m['model_type']}, {words.size_of(m['params'])} parameters")
    longest = "not stated" if m["max_seq_len"] is None else f"{m['max_seq_len']:,} tokens"
    yield table(
        [
            ("parameters", f"{m['params']:,}", "each weight once"),
            ("active", f"{m['active_params']:,}", "that one token meets"),
            ("embedding", f"{m['embedding_params']:,}", "input side"),
            (
                "head",
                f"{m['head_params']:,}",
                "output side; " + ("tied to the embedding" if m["tied"] else "not tied"),
            ),
            ("vocabulary", f"{m['vocab']:,}", ""),
            ("width", f"{m['hidden']:,}", ""),
            ("sequence", longest, "published for"),
            *_mtp_rows(m),
            *_tower_rows(m),
        ],
        "lrl",
    )
    yield title("Layers", f"{m['layers']:,}")
    header = ("kind", "layers", "parameters", "active", "heads", "kv", "head dim", "window", "feed-forward")
    yield table([_kind_row(kind) for kind in m["kinds"]], "lrrrrrrrl", header=header)
    yield from (bullet(note) for note in m["notes"])
    yield faint(f"source: {m['source']}")


def _mtp_rows(m: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What multi-token-prediction modules add, where a model was published with some."""
    if mtp := m["mtp"]:
        count = words.plural(mtp["modules"], "module")
        own, stored = (m["params"] + mtp["modules"] * mtp[key] for key in ("params", "stored_params"))
        yield "with MTP", f"{own:,}", f"and {count} of multi-token prediction"
        yield "as stored", f"{stored:,}", "with their copies of token table and head"


def _tower_rows(m: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What a vision tower adds, where it was read."""
    if tower := m["tower"]:
        makes = (
            f"{tower['layers']} layers on {tower['patches']:,} patches, {tower['tokens']:,} tokens an image"
        )
        yield "with vision", f"{m['params'] + tower['params']:,}", f"and tower with projector: {makes}"


def _kind_row(kind: dict[str, Any]) -> tuple[str, ...]:
    qk, v = kind["qk_head_dim"], kind["v_head_dim"]
    ffn = f"{kind['ffn_width']:,}" if kind["ffn_width"] else ""
    if kind["ffn_experts"]:
        routed = f"{kind['ffn_top_k']} of {kind['ffn_experts']:,} experts of {kind['ffn_expert_width']:,}"
        ffn = f"{routed}, {ffn} shared" if ffn else routed
    return (
        kind["name"], str(kind["layers"]), words.size_of(kind["params"]), words.size_of(kind["active_params"]),
        str(kind["heads"]), str(kind["kv_heads"]), str(qk) if qk == v else f"{qk}/{v}",
        "-" if kind["window"] is None else f"{kind['window']:,}", ffn,
    )  # fmt: skip


def models_page(names: Sequence[str], sources: bool) -> Iterator[Block]:
    """One line per model."""
    yield headline(
        f"{words.plural(len(names), 'model')}; one name, or the path of a config.json, shows all of it"
    )
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
