"""A cluster: chips, how they are joined, what hosts them; and the one parser of the cluster string.

chip:shape[*slices][@fabric]
v5p:16x20x28      one TPU slice, in chips
v5e:16x16*4       four slices joined by the data-centre network
h100:8x2048       GPUs per NVLink domain x domains
gb200:72x8@ib400-nvl72
v5p-128           a cloud name: 128 TensorCores = 64 chips = v5p:4x4x4
rtx-4090          a board: one chip, no shape and no network
"""

import re
from dataclasses import dataclass, replace
from math import prod

from meshwright.hardware import fabric as fabrics
from meshwright.hardware import slices as tpu_slices
from meshwright.hardware.boards import boards_are_single, read_board
from meshwright.hardware.chip import Alone, Chip, Switch, Torus
from meshwright.hardware.errors import ClusterError, check_type
from meshwright.hardware.fabric import Fabric
from meshwright.hardware.network import Level, SwitchTier, TorusAxis
from meshwright.hardware.numbers import check_fields
from meshwright.hardware.profile import CATALOGUE, is_profile_chip, load_profile, profile_chip
from meshwright.hardware.units import human_bytes, human_rate, parse_bytes, parse_params_per_s

_GRAMMAR = "write chip:shape[*slices][@fabric], like v5p:16x20x28, v5e:16x16*4 or h100:8x2048@ib400"
_STRING = re.compile(
    r"(?P<chip>[A-Za-z0-9][\w .-]*?)(?::(?P<shape>\d{1,7}(?:x\d{1,7})*))?(?:\*(?P<slices>\d{1,7}))?"
    r"(?:@(?P<fabric>\S.*))?",
    re.ASCII,
)
_LONGEST = 500
_MOST_DEVICES = 1 << 22  # beyond any machine; keeps a typo from costing minutes


@dataclass(frozen=True)
class Cluster:
    """What a plan is made for.

    `levels` run innermost first; the product of their sizes is `devices`. `shape` is in chips: the torus
    sides, or (chips per domain, domains). `fabric_note` is the sentence to print about the network
    outside the scale-up domain. `host_memory_bytes` and `cpu_update_params_per_s` are per host and None
    where nobody states them.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int
    levels: tuple[Level, ...]
    devices: int
    chips: int
    devices_per_host: int | None
    host_memory_bytes: int | None
    cpu_update_params_per_s: float | None
    fabric_note: str
    warnings: tuple[str, ...]
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self, ClusterError)

    @property
    def price_usd_per_hour(self) -> float | None:
        """USD per hour for all chips at list price; None where no source prices the chip."""
        per_chip = self.chip.price_usd_per_hour
        return None if per_chip is None else per_chip * self.chips


@dataclass(frozen=True)
class _Asked:
    """The cluster string, read but not yet checked against the chip."""

    chip: Chip
    dims: tuple[int, ...]
    slices: int | None
    fabric: str | None
    notes: tuple[str, ...] = ()

    @property
    def fabric_is_default(self) -> bool:
        """Whether nothing was named, or the default by its name (a file is never the default)."""
        return self.fabric in (None, self.chip.scale_out.default_fabric)


def parse_cluster(
    text: str,
    *,
    host_memory: str | None = None,
    cpu_update: str | None = None,
    fabric: str | None = None,
    profile: str = CATALOGUE,
) -> Cluster:
    """Read a cluster string.

    host_memory: DRAM of one host, like '2 TB'; cpu_update: parameters that one host's CPU updates per
    second, like '3 Gparam/s'; fabric: as after '@'; profile: whose figures chips and links have, like 'book'.
    Errors: ClusterError, UnknownNameError, UnitError; all say what to write instead.
    """
    check_type("host_memory", host_memory, (str, type(None)), "a size such as '2 TB', or None", ClusterError)
    check_type(
        "cpu_update", cpu_update, (str, type(None)), "a rate such as '3 Gparam/s', or None", ClusterError
    )
    asked = _read(text, fabric, profile)
    built, network = _laid_out(asked)
    if profile != CATALOGUE:
        built = _with_profile(built, profile)
    return _finish(asked, network, built, host_memory, cpu_update)


def _laid_out(asked: _Asked) -> tuple["_Built", Fabric | None]:
    """The chips with their network, and the fabric beyond a domain or slice."""
    up = asked.chip.scale_up
    if isinstance(up, Alone):
        return _board_cluster(asked), None
    network = fabrics.load_fabric(
        asked.chip.scale_out.default_fabric if asked.fabric is None else asked.fabric
    )
    fabrics.check_fits(network, asked.chip)
    if isinstance(up, Torus):
        return _torus_cluster(asked, up, network), network
    return _switched_cluster(asked, up, network), network


@dataclass(frozen=True)
class _Built:
    """What the two kinds of network have in common once they are laid out."""

    name: str
    shape: tuple[int, ...]
    slices: int
    levels: tuple[Level, ...]
    block_devices: int  # one slice or one domain
    fabric_note: str
    uses_fabric: bool
    warnings: tuple[str, ...]
    sources: tuple[str, ...] = ()


def _with_profile(built: _Built, profile: str) -> _Built:
    """The profile's latency on switched tiers, and a sentence that says whose figures these are."""
    loaded = load_profile(profile)
    latency = loaded.switch_latency_s
    levels = tuple(
        replace(level, latency_s=latency) if isinstance(level, SwitchTier) and latency is not None else level
        for level in built.levels
    )
    note = f"figures of the {profile} profile: {loaded.title}"
    return replace(built, levels=levels, warnings=(*built.warnings, note))


def _read(text: str, fabric: str | None, profile: str) -> _Asked:
    check_type("cluster", text, str, "a string such as 'h100:8x64'", ClusterError)
    check_type(
        "fabric", fabric, (str, type(None)), "a name such as 'roce', a YAML file, or None", ClusterError
    )
    match = _STRING.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        if len(text) <= _LONGEST and _STRING.fullmatch(re.sub(r"\d{8,}", "9999999", text.strip())):
            raise ClusterError(_too_large(text))
        raise ClusterError(f"cannot read cluster {text[:80]!r}; {_GRAMMAR}")
    named = match["fabric"]
    if named and fabric and named != fabric:
        raise ClusterError(f"cluster {text[:80]!r} names fabric {named}, and {fabric} is given too; keep one")
    slices = int(match["slices"]) if match["slices"] else None
    fabric = named or fabric
    if fabric is not None and not fabrics.is_path(fabric):
        fabric = fabric.strip().lower()
    if match["shape"] is None:
        board, exact = read_board(match["chip"], profile)
        if board is not None:
            if not exact or slices is not None or fabric is not None:
                raise ClusterError(boards_are_single(text, board))
            return _Asked(board, (1,), None, None)
        chip, dims, note = _read_cloud_name(match["chip"], profile)
        return _Asked(chip, dims, slices, fabric, (note,))
    chip = profile_chip(match["chip"], profile)
    if chip.is_board:
        raise ClusterError(boards_are_single(text, chip))
    dims = tuple(int(size) for size in match["shape"].split("x"))
    if 0 in dims or slices == 0:
        raise ClusterError(f"cluster {text[:80]!r} has a zero in it; every size is at least 1")
    if prod(dims) * (slices or 1) * chip.devices_per_chip > _MOST_DEVICES:
        raise ClusterError(_too_large(text))
    return _Asked(chip, dims, slices, fabric)


def _too_large(text: str) -> str:
    return f"cluster {text[:80]!r} has more than {_MOST_DEVICES:,} devices; check the shape"


def _read_cloud_name(name: str, profile: str) -> tuple[Chip, tuple[int, ...], str]:
    """v5p-128 and the like; a chip without a shape is refused."""
    stem, _, size = name.rpartition("-")
    if not is_profile_chip(name, profile) and size.isdigit() and is_profile_chip(stem, profile):
        chip = profile_chip(stem, profile)
        if isinstance(chip.scale_up, Torus):
            dims, note = tpu_slices.shape_of_cloud_size(chip, int(size))
            return chip, dims, note
        raise ClusterError(
            f"{name!r} is not a cluster; write chips per domain x domains, "
            f"like {chip.name}:8x{max(1, int(size) // 8)}"
        )
    chip = profile_chip(name, profile)
    example = "16x16" if isinstance(chip.scale_up, Torus) and chip.scale_up.dims == 2 else "4x4x4"
    if isinstance(chip.scale_up, Switch):
        example = f"{chip.scale_up.domain.count}x4"
    raise ClusterError(f"cluster {name!r} has no shape; write it like {chip.name}:{example}")


def _board_cluster(asked: _Asked) -> _Built:
    """One device, in a level of one that nothing crosses: its rate, the memory's, is never used."""
    inside = SwitchTier("package", 1, asked.chip.hbm_bytes_per_s, 0.0)
    return _Built(
        name=asked.chip.name,
        shape=(1, 1),
        slices=1,
        levels=(inside,),
        block_devices=asked.chip.devices_per_chip,
        fabric_note="a board: one chip without a network",
        uses_fabric=False,
        warnings=asked.notes,
    )


def _torus_cluster(asked: _Asked, torus: Torus, network: Fabric) -> _Built:
    chip = asked.chip
    found = tpu_slices.find_slice(chip, torus, asked.dims)
    slices = asked.slices or 1
    levels: list[Level] = []
    warnings = [*asked.notes, *found.notes]
    if chip.devices_per_chip > 1:
        tier, note = _package(chip, torus)
        levels.append(tier)
        warnings.append(note)
    # Devices of one chip share its links.
    link = torus.per_link_one_way.si / chip.devices_per_chip
    for axis, size, wraps in zip("xyz", found.shape, found.wraps, strict=False):
        levels.append(TorusAxis(axis, size, link, wraps, torus.hop_latency.si))
    outer, notes = fabrics.outer_levels(network, chip, slices)
    levels += outer
    total = prod(found.shape) * slices
    most = torus.max_multislice_chips
    if most is not None and slices > 1 and total > most.count:
        warnings.append(
            f"{chip.name}: Google's page gives {most.count:,} chips as the most over all slices; "
            f"this is {total:,}"
        )
    note = (
        fabrics.describe(network, chip, default=asked.fabric_is_default)
        if slices > 1
        else "one slice: the data-centre network is not used"
    )
    return _Built(
        name=f"{chip.name}:{found.text}" + (f"*{slices}" if slices > 1 else ""),
        shape=found.shape,
        slices=slices,
        levels=tuple(levels),
        block_devices=prod(found.shape) * chip.devices_per_chip,
        fabric_note=note,
        uses_fabric=slices > 1,
        warnings=(*warnings, *notes),
        sources=(tpu_slices.slice_table().source,),
    )


def _package(chip: Chip, torus: Torus) -> tuple[SwitchTier, str]:
    """The level between the devices of one chip."""
    figure = torus.package_one_way_per_device
    if figure is None:
        raise ClusterError(f"chip {chip.name} has {chip.devices_per_chip} devices and no rate between them")
    tier = SwitchTier("package", chip.devices_per_chip, figure.si, torus.hop_latency.si)
    rate = human_rate(figure.si)
    return tier, f"{chip.name}: {rate} between the devices of a chip ({figure.confidence}: {figure.note})"


def _switched_cluster(asked: _Asked, switch: Switch, network: Fabric) -> _Built:
    chip = asked.chip
    if asked.slices is not None:
        raise ClusterError(
            f"'*slices' is for TPU slices; {chip.name} takes domains: {chip.name}:8x{asked.slices}"
        )
    if len(asked.dims) > 2:
        raise ClusterError(
            f"{chip.name} takes two sizes, chips per {switch.kind} domain x domains, like "
            f"{chip.name}:{switch.domain.count}x4; got {len(asked.dims)}"
        )
    size, count = asked.dims if len(asked.dims) == 2 else (asked.dims[0], 1)
    if size > switch.domain.count:
        raise ClusterError(_domain_too_large(chip, switch, size, count))
    rate, mesh_notes = _scale_up_rate(chip, switch, size)
    gain = network.scale_up_all_reduce.get(chip.name)
    speedup = gain.speedup.si if gain is not None and size > gain.above_chips.count else 1.0
    inner = SwitchTier(switch.kind.split()[0].lower(), size, rate, switch.latency.si, speedup)
    outer, notes = fabrics.outer_levels(network, chip, count)
    if count > 1:
        note = fabrics.describe(network, chip, default=asked.fabric_is_default)
    else:
        note = f"one {switch.kind} domain of {size}: no scale-out network is used"
    return _Built(
        name=f"{chip.name}:{size}x{count}",
        shape=(size, count),
        slices=1,
        levels=(inner, *outer),
        block_devices=size * chip.devices_per_chip,
        fabric_note=note,
        uses_fabric=count > 1,
        warnings=(*asked.notes, *_part_of_a_domain(chip, switch, size, count), *mesh_notes, *notes),
    )


def _scale_up_rate(chip: Chip, switch: Switch, size: int) -> tuple[float, tuple[str, ...]]:
    """Bytes/s per device inside the domain; a full mesh has only the links to the peers present."""
    pair = switch.per_pair_one_way
    if pair is None or size == 1:
        return switch.per_chip_one_way.si / chip.devices_per_chip, ()
    rate = min(switch.per_chip_one_way.si, pair.si * (size - 1))
    note = (
        f"{chip.name}: direct links without a switch, {pair.text} per pair; a group of k chips reaches "
        f"(k - 1) x {pair.text}, so plans with groups smaller than {size} are priced too fast"
    )
    return rate / chip.devices_per_chip, (note,)


def _part_of_a_domain(chip: Chip, switch: Switch, size: int, count: int) -> tuple[str, ...]:
    """A sentence where domains of the machine stay partly unused, which may be a slip of the pen."""
    whole = switch.domain.count
    if size == whole:
        return ()
    kind = switch.kind.split()[0].rstrip(",")
    used = f"{chip.name}: an {kind} domain has {whole} chips and {size} of each are used"
    return (f"{used}; write {chip.name}:{whole}x{count} for whole domains",)


def _domain_too_large(chip: Chip, switch: Switch, size: int, count: int) -> str:
    real = switch.domain.count
    total = size * count
    near = f"{chip.name}:{real}x{-(-total // real)}"
    return (
        f"{chip.name}:{size}x{count} does not exist: {switch.kind} joins at most {real} {chip.name} chips; "
        f"write chips per domain x domains, like {near}"
    )


def _finish(
    asked: _Asked,
    network: Fabric | None,
    built: _Built,
    host_memory: str | None,
    cpu_update: str | None,
) -> Cluster:
    chip = asked.chip
    chips = prod(built.shape) * built.slices
    per_host, memory, host_notes = _host(chip, built.block_devices, host_memory)
    warnings = [*built.warnings, *host_notes]
    if chip.memory_warning:
        warnings.append(chip.memory_warning)
    beyond = network.sources() if network is not None and built.uses_fabric else ()
    sources = (*chip.sources(), *built.sources, *beyond)
    return Cluster(
        name=built.name + ("" if asked.fabric_is_default else f"@{asked.fabric}"),
        chip=chip,
        shape=built.shape,
        slices=built.slices,
        levels=_drop_singletons(built.levels),
        devices=chips * chip.devices_per_chip,
        chips=chips,
        devices_per_host=per_host,
        host_memory_bytes=memory,
        cpu_update_params_per_s=None if cpu_update is None else parse_params_per_s(cpu_update),
        fabric_note=built.fabric_note,
        warnings=tuple(dict.fromkeys(warnings)),
        sources=tuple(dict.fromkeys(sources)),
    )


def _host(
    chip: Chip, block_devices: int, given: str | None
) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Devices on one host, its memory, and sentences. A block smaller than a host gets its share."""
    memory = None if given is None else parse_bytes(given)
    if chip.host is None:
        return None, memory, ()
    whole = chip.host.chips_per_host.count * chip.devices_per_chip
    here = min(whole, block_devices)
    if memory is not None or chip.host.dram_per_host is None:
        return here, memory, ()
    share = int(chip.host.dram_per_host.si) * here // whole
    if here == whole:
        return here, share, ()
    note = (
        f"{here} of a host's {whole} devices are used: its share of host memory, {human_bytes(share)}, "
        f"is planned with"
    )
    return here, share, (note,)


def _drop_singletons(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    return tuple(level for level in levels if level.size > 1) or levels[:1]
