"""What a slice, pod or cluster consists of, as a working: counts, totals, links, and the balance of its rates."""

from collections.abc import Mapping
from math import prod

from meshwright.costmodel.doors import ChipSource, ClusterSource, check_whole, chip_of, cluster_of
from meshwright.costmodel.roofline.ceilings import peak, source_rate
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.chip import Chip, Torus
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import MissingFigureError
from meshwright.hardware.inventory import Totals, links_per_chip, totals, wires
from meshwright.hardware.onchip import (
    GpuUnits,
    TpuUnits,
    mxu_flop_per_s,
    tensor_clock_hz,
    tensor_flop_per_s,
    units_of,
    vector_flop_per_s,
)

SHOWN = ("bf16", "fp8", "fp4", "int8", "int4")  # peaks told on the page


def inventory(cluster: ClusterSource) -> Working:
    """Counts and totals of a cluster, its network level by level, and the intensities its chips balance at."""
    cluster = cluster_of(cluster)
    chip = cluster.chip
    blocks = cluster.slices if isinstance(chip.scale_up, Torus) else cluster.shape[1]
    found = totals(chip, cluster.chips, blocks)
    steps = _counts(chip, found) | _sums(chip, found) | _links(chip) | balance(chip) | inside(chip)
    return Working(
        f"{cluster.name}: {chip.title}",
        _per_chip(chip),
        steps,
        _wraparound(cluster),
        _notes(cluster),
        _levels(cluster),
    )


def pod(chip: ChipSource, chips: int) -> Working:
    """The same of a number of chips whose shape does not matter."""
    chip = chip_of(chip)
    check_whole(chips=chips)
    found = totals(chip, chips)
    steps = _counts(chip, found) | _sums(chip, found) | balance(chip)
    return Working(f"{chips:,} chips: {chip.title}", _per_chip(chip), steps)


def balance(chip: Chip) -> dict[str, Step]:
    """FLOPs per byte at which a chip's peak and one of its rates take equally long; those that sources give."""
    steps = {}
    for source, place in (("hbm", "W_hbm"), ("network", "W_net"), ("dcn", "W_dcn"), ("host", "W_host")):
        for dtype in ("bf16", "fp8", "int8") if source == "hbm" else ("bf16",):
            try:
                top, rate = peak(chip, dtype), source_rate(chip, source)
            except MissingFigureError:
                continue
            name = f"alpha_{source}" + (f"_{dtype}" if source == "hbm" else "")
            value = critical_intensity(top.per_s, rate.per_s)
            steps[name] = Step(value, "FLOP/B", f"C_{dtype} / {place}", rate.name)
    return steps


def rate_ratio(chip: Chip, over: str, under: str) -> float:
    """One place's rate over another's, by their names in ceilings.py. Errors: MissingFigureError."""
    return source_rate(chip, over).per_s / source_rate(chip, under).per_s


def ratios(chip: ChipSource, other: ChipSource) -> Working:
    """Two chips side by side, bf16, memory and its rate; the first over the second."""
    chip, other = chip_of(chip), chip_of(other)
    pairs = {
        "flops": (peak(chip, "bf16").per_s, peak(other, "bf16").per_s, "FLOP/s"),
        "hbm": (chip.memory.capacity.si, other.memory.capacity.si, "B"),
        "hbm_rate": (chip.memory.bandwidth.si, other.memory.bandwidth.si, "B/s"),
    }
    given = {f"{name}_{i}": Step(pair[i - 1], unit) for name, (*pair, unit) in pairs.items() for i in (1, 2)}
    steps = {name: Step(a / b, "ratio", f"{name}_1 / {name}_2") for name, (a, b, _) in pairs.items()}
    return Working(f"{chip.title} over {other.title}", given, steps)


def inside(chip: Chip) -> dict[str, Step]:
    """Units of one chip and the rates that follow from their clock."""
    units = units_of(chip.name)
    if isinstance(units, TpuUnits):
        return _tpu_inside(chip, units)
    return _gpu_inside(chip, units) if isinstance(units, GpuUnits) else {}


def _per_chip(chip: Chip) -> dict[str, Step]:
    given = {
        f"C_{dtype}": Step(figure.si, "FLOP/s", note=figure.source)
        for dtype, figure in chip.peak.items()
        if dtype in SHOWN
    }
    given["HBM"] = Step(chip.memory.capacity.si, "B", note=f"per chip, {chip.memory.capacity.source}")
    given["W_hbm"] = Step(chip.memory.bandwidth.si, "B/s", note=chip.memory.bandwidth.source)
    for source, name in (("network", "W_net"), ("dcn", "W_dcn"), ("host", "W_host")):
        try:
            rate = source_rate(chip, source)
        except MissingFigureError:
            continue
        given[name] = Step(rate.per_s, "B/s", note=f"per chip, {rate.name}: {rate.note}")
    return given


def _counts(chip: Chip, found: Totals) -> dict[str, Step]:
    steps = {"chips": Step(found.chips)}
    if chip.devices_per_chip > 1:
        steps["devices"] = Step(
            found.devices, formula=f"{chip.devices_per_chip} chips", note="what a program sees"
        )
    if found.hosts is not None and chip.host is not None:
        per_host = chip.host.chips_per_host.count
        units = units_of(chip.name)
        host_slice = units.host_slice if isinstance(units, TpuUnits) else None
        shape = f" ({host_slice.text})" if host_slice else ""
        steps["hosts"] = Step(
            found.hosts, formula=f"chips / {per_host}", note=f"{per_host} chips per host{shape}"
        )
    if found.cores is not None:
        steps["cores"] = Step(found.cores, note="TensorCores" if chip.family == "tpu" else "SMs")
    return steps


def _sums(chip: Chip, found: Totals) -> dict[str, Step]:
    steps = {
        f"flops_per_s_{dtype}": Step(rate, "FLOP/s", f"chips C_{dtype}")
        for dtype, rate in found.flop_per_s.items()
        if dtype in SHOWN
    }
    steps["hbm_total"] = Step(found.hbm_bytes, "B", "chips HBM")
    steps["hbm_bytes_per_s"] = Step(found.hbm_bytes_per_s, "B/s", "chips W_hbm")
    steps["t_read_hbm"] = Step(found.hbm_bytes / found.hbm_bytes_per_s, "s", "HBM / W_hbm", "all of it once")
    if found.host_bytes is not None:
        steps["host_memory"] = Step(found.host_bytes, "B", note="DRAM of all hosts")
    return steps


def _links(chip: Chip) -> dict[str, Step]:
    links = links_per_chip(chip)
    if links is None or not isinstance(chip.scale_up, Torus):
        return {}
    link = chip.scale_up.per_link_one_way
    return {
        "links_per_chip": Step(links, formula=f"2 x {chip.scale_up.dims} axes"),
        "ici_egress": Step(
            links * link.si, "B/s", "links_per_chip x link", f"of one chip; {link.text} one way per link"
        ),
    }


def _tpu_inside(chip: Chip, units: TpuUnits) -> dict[str, Step]:
    side = units.mxu_side.count
    steps = {"mxus_per_chip": Step(units.mxus, note=f"{side} x {side}, dimensions are padded to {side}")}
    if units.vmem is not None:
        steps["vmem"] = Step(units.vmem.si, "B", note=f"per chip, {units.vmem.source}")
    if units.clock is None:
        return steps
    note = f"per chip at {units.clock.text}, {units.clock.source}"
    steps["peak_from_clock"] = Step(
        mxu_flop_per_s(side, units.clock.si, units.mxus), "FLOP/s", f"2 x {side}^2 x clock x mxus", note
    )
    if units.vector_alus is not None:
        rate = vector_flop_per_s(units.vector_alus, units.clock.si)
        steps["vector_peak"] = Step(rate, "FLOP/s", "ALUs x clock", f"{units.vector_alus:,} ALUs per chip")
        if "bf16" in chip.peak:
            steps["matrix_over_vector"] = Step(chip.peak["bf16"].si / rate, "ratio", "C_bf16 / vector_peak")
    return steps


def _gpu_inside(chip: Chip, units: GpuUnits) -> dict[str, Step]:
    sms, cores = units.sms.count, units.tensor_cores_per_sm.count
    steps = {"tensor_cores": Step(sms * cores, formula=f"{sms} SMs x {cores}", note="per chip")}
    if units.flop_per_cycle is not None and units.tensor_clock is not None:
        per_cycle = units.flop_per_cycle.si
        value = tensor_flop_per_s(sms, cores, per_cycle, units.tensor_clock.si)
        note = f"per chip at {units.tensor_clock.text}, bf16; {units.tensor_clock.source}"
        steps["peak_from_clock"] = Step(value, "FLOP/s", f"tensor_cores x {per_cycle:g} x clock", note)
    elif units.flop_per_cycle is not None and "bf16" in chip.peak:
        value = tensor_clock_hz(chip.peak["bf16"].si, sms, cores, units.flop_per_cycle.si)
        formula = f"C_bf16 / (tensor_cores x {units.flop_per_cycle.si:g})"
        steps["clock_behind_peak"] = Step(value, "cycles/s", formula, "no source lists the clock")
    if units.boost_clock is not None:
        rate = vector_flop_per_s(units.vector_alus, units.boost_clock.si)
        note = f"{units.vector_alus:,} ALUs per chip at boost; a multiply-add counted once"
        steps["vector_peak"] = Step(rate, "FLOP/s", "ALUs x clock", note)
        if "bf16" in chip.peak:
            steps["matrix_over_vector"] = Step(chip.peak["bf16"].si / rate, "ratio", "C_bf16 / vector_peak")
    return steps


def _levels(cluster: Cluster) -> tuple[Mapping[str, Value], ...]:
    return tuple(
        {
            "level": wire.name,
            "size": wire.size,
            "wraps": "" if wire.wraps is None else wire.wraps,
            "GB/s one way": wire.per_chip_bytes_per_s / 1e9,
            "per": "link" if wire.max_hops is not None else "chip",
            "most hops": "" if wire.max_hops is None else wire.max_hops,
            "bisection TB/s": wire.bisection_bytes_per_s / 1e12,
        }
        for wire in wires(cluster)
    )


def _wraparound(cluster: Cluster) -> str:
    if not isinstance(cluster.chip.scale_up, Torus):
        return _narrowest(cluster)
    rule = {
        "axis of 16": "an axis wraps if its size is 16",
        "whole cubes": "axes wrap if the slice is made of whole 4x4x4 cubes",
    }.get(cluster.chip.scale_up.wraps, "")
    axes = [w for w in wires(cluster) if w.wraps is not None]
    lines = [w.name for w in axes if not w.wraps]
    if not axes:
        return "a single chip has no links in use"
    if not lines:
        return f"all axes wrap ({rule}): collectives run both ways round"
    what = f"axis {lines[0]} does" if len(lines) == 1 else f"axes {', '.join(lines)} do"
    return f"{what} not wrap ({rule}): collectives run one way only there, in about twice the time"


def _narrowest(cluster: Cluster) -> str:
    """Which level of a switched network is the narrow one, and by how much."""
    levels = [wire for wire in wires(cluster) if wire.size > 1]
    if not levels:
        return f"one {cluster.chip.name}: no network binds, its memory does below alpha_hbm"
    inside, slowest = levels[0], min(levels, key=lambda wire: wire.per_chip_bytes_per_s)
    rate = f"{slowest.per_chip_bytes_per_s / 1e9:,.4g} GB/s one way per chip"
    if slowest is inside:
        return f"{inside.name} binds collectives: {rate}, and nothing narrower"
    less = inside.per_chip_bytes_per_s / slowest.per_chip_bytes_per_s
    return (
        f"{slowest.name} binds collectives of more than {inside.size} chips: {rate}, {less:.3g} times less than the "
        f"{inside.per_chip_bytes_per_s / 1e9:,.4g} GB/s of {inside.name}"
    )


def _notes(cluster: Cluster) -> tuple[str, ...]:
    note = "bisections count one direction of one slice, domain or the whole; memory is nominal"
    unused = len(cluster.shape) - sum(1 for size in cluster.shape if size > 1)
    alone = f"; {unused} axis of size 1 is left out" if unused and prod(cluster.shape) > 1 else ""
    return (cluster.fabric_note, note + alone, *cluster.warnings)
