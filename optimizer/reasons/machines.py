"""Other machines of the catalogue that a question could be asked of: more of the same chips, or chips with more memory."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from meshwright.costmodel.setting import Setting
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.chip import Chip, Switch, Torus, chip_names, load_chip
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.slices import listed_shapes

_MOST_TIMES = 1024  # as many devices as there are


def larger(setting: Setting) -> Iterator[Setting]:
    """The same chips, more of them: domains filled up and doubled, the next slices, slices side by side."""
    cluster = setting.cluster
    if not _of_catalogue(cluster):
        return
    for shape in _shapes(cluster):
        try:
            yield _on(setting, f"{cluster.chip.name}:{shape}{_fabric(cluster)}")
        except MeshwrightError:  # no such slice, or more than the fabric holds
            continue


def roomier(setting: Setting) -> Iterator[Setting]:
    """As many chips of another kind with more memory, the least memory first; rates as the calibration has them."""
    cluster, here = setting.cluster, setting.cluster.chip
    if not _of_catalogue(cluster):
        return
    others = (load_chip(name) for name in chip_names())
    alike = [c for c in others if c.memory_bytes > here.memory_bytes and _same_kind(c, here)]
    shape = cluster.name.partition(":")[2].partition("@")[0]
    for chip in sorted(alike, key=lambda c: c.memory_bytes):
        try:
            changed = _on(setting, f"{chip.name}:{shape}")
            rates = load_efficiency(setting.efficiency.name, chip, setting.framework.software)
        except MeshwrightError:  # no such shape of that chip, or rates from a file that only its path names
            continue
        if setting.training.compute_dtype in chip.peak:
            yield replace(changed, efficiency=rates)


def _on(setting: Setting, name: str) -> Setting:
    """The question on a named cluster; what the user said of hosts stays said."""
    made, old = parse_cluster(name), setting.cluster
    made = replace(
        made,
        host_memory_bytes=made.host_memory_bytes if old.host_memory_bytes is None else old.host_memory_bytes,
        cpu_update_params_per_s=old.cpu_update_params_per_s,
    )
    return replace(setting, cluster=made)


def _of_catalogue(cluster: Cluster) -> bool:
    """Whether the name says it all: not for a cluster changed in Python."""
    try:
        named = parse_cluster(cluster.name)
    except MeshwrightError:
        return False
    return not named.chip.is_board and (named.chip, named.levels) == (cluster.chip, cluster.levels)


def _fabric(cluster: Cluster) -> str:
    return f"@{fabric}" if (fabric := cluster.name.partition("@")[2]) else ""


def _same_kind(a: Chip, b: Chip) -> bool:
    return type(a.scale_up) is type(b.scale_up) and a.devices_per_chip == b.devices_per_chip


def _shapes(cluster: Cluster) -> Iterator[str]:
    """Shapes with more chips, ascending."""
    up = cluster.chip.scale_up
    if isinstance(up, Switch):
        size, count = cluster.shape
        while size < up.domain.count:
            size = min(2 * size, up.domain.count)
            yield f"{size}x{count}"
        for times in _powers(count):
            yield f"{size}x{times}"
    elif isinstance(up, Torus):
        if cluster.slices == 1:
            yield from _slices(cluster)
        shape = "x".join(map(str, cluster.shape))
        for times in _powers(cluster.slices):
            yield f"{shape}*{times}"


def _slices(cluster: Cluster) -> Iterator[str]:
    """Larger single slices as they are listed, of several with as many chips the one nearest to a cube."""
    best: dict[int, tuple[int, ...]] = {}
    for shape in listed_shapes(cluster.chip.name).values():
        chips = prod(shape)
        if chips > cluster.chips and (chips not in best or max(shape) < max(best[chips])):
            best[chips] = shape
    for chips in sorted(best):
        yield "x".join(map(str, best[chips]))


def _powers(count: int) -> Iterator[int]:
    """Powers of two above a count."""
    power = 1 << count.bit_length()
    while power <= count * _MOST_TIMES:
        yield power
        power *= 2
