"""The fastest mixes of stages, and their ways to spare hosts, against every pair of policies and every split."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from exhaustive_oracle import Floats

from meshwright.costmodel.tensors import HOST
from meshwright.optimizer import several
from meshwright.optimizer.host_mixes import within_hosts
from meshwright.optimizer.mixes import Mixed, fastest
from meshwright.optimizer.offers import Mix, Offer, Room

KINDS = [(1,), (2,), (1, 1), (2, 1)]  # sizes of layers by kind
Ways = tuple[Floats, list[tuple[Mix, ...]]]


@dataclass(frozen=True)
class Drawn:
    """Policies of each kind, layers [E, K], and what stages leave them."""

    offers: tuple[Offer, ...]
    counts: Floats
    room: Room


def offer(random: np.random.Generator, size: float, host: bool) -> Offer:
    """Policies of a layer that saves some of `size` on the device, some on the host, and makes the rest again."""
    many = int(random.integers(2, 8))
    device, away = size * random.random(many), np.zeros(many)
    if host:
        away = np.where(random.random(many) < 0.6, device * random.random(many), 0.0)
    again = size - device
    seconds = (1.0 + again * random.random(many)) * size
    if random.random() < 0.3:  # several that are as fast, and one that saves nothing
        seconds[: many // 2], device[0], away[0] = seconds[0], 0.0, 0.0
    codes = np.arange(many) | (away > 0).astype(np.int64) << HOST
    return Offer(codes, seconds, device - away, away, 2.0 * size - (device - away))


def draw(random: np.random.Generator, sizes: tuple[int, ...], host: bool, stages: int = 12) -> Drawn:
    """Stages whose memory is from what nothing fits to what all fits."""
    offers = tuple(offer(random, float(size), host) for size in sizes)
    counts = random.integers(0, 6, (stages, len(sizes))).astype(float)
    counts[counts.sum(axis=1) == 0, 0] = 1.0
    held, last = random.choice([0.75, 1.0, 2.0, 5.0], stages), random.random(stages) < 0.3
    held = np.maximum(held, 1.0)  # every layer is in flight at least once
    gathers, loss = random.random() * 2, random.random() * 6
    some = random.spawn(1)[0]  # apart, so that the other draws are what they were without it
    # Stages that defer weight gradients are fullest with up to half of them late, or with most in flight.
    fewer = np.where(some.random(stages) < 0.5, np.maximum(held - some.random(stages) * held / 2, 1.0), held)
    kept = (held - fewer) * some.random(stages) * (counts @ np.array(sizes, float))
    device = counts @ [o.device.max() for o in offers]
    most = np.maximum(held * device, fewer * device + kept)
    room = most * random.uniform(0.0, 1.1, stages) + gathers + 2.0 * max(sizes) * random.uniform(0.4, 1.1)
    away = counts @ [o.host.max() for o in offers]
    hosts = np.where(host & (random.random(stages) < 0.6), away * random.random(stages), np.inf)
    moments = np.stack([fewer, held], axis=1), np.stack([kept, np.zeros(stages)], axis=1)
    return Drawn(offers, counts, Room(room, *moments, last * loss, hosts, gathers))


def every_way(drawn: Drawn, e: int) -> Ways:
    """(seconds, host bytes, whether some are on the host [W, 3], mixes) of one stage that its device holds, by brute force."""
    of_kind = []
    for each, n in zip(drawn.offers, drawn.counts[e].astype(int).tolist(), strict=True):
        picks = {
            tuple((code, k) for code, k in ((i, n - k), (j, k)) if k): None
            for i, j in product(range(len(each)), repeat=2)
            for k in range(n)
            if i != j or not k
        }
        of_kind.append(list(picks) if n else [()])
    points, mixes = [], []
    room = drawn.room
    for chosen in product(*of_kind):
        mix = [(o, i, k) for o, some in zip(drawn.offers, chosen, strict=True) for i, k in some]
        seconds, device, host = (
            sum(k * getattr(o, name)[i] for o, i, k in mix) for name in ("seconds", "device", "host")
        )
        working = max(o.working[i] for o, i, _ in mix) + room.gathers
        working = max(working, room.beside[e])
        fullest = max(device * held + kept for held, kept in zip(room.held[e], room.kept[e], strict=True))
        if fullest + working <= room.room[e]:
            points.append([seconds, host, any(o.host[i] for o, i, _ in mix)])
            pairs = zip(drawn.offers, chosen, strict=True)
            mixes.append(tuple(tuple((int(o.codes[i]), k) for i, k in some) for o, some in pairs))
    return np.array(points, float).reshape(-1, 3), mixes


def some_of(ways: Ways, good: Floats) -> Ways:
    return ways[0][good], [mix for mix, keep in zip(ways[1], good.tolist(), strict=True) if keep]


def flaws_of(drawn: Drawn, e: int, mixed: Mixed, at: int, ways: Ways) -> None:
    """A mix is one of the ways, and costs what it says."""
    points, mixes = ways
    found = tuple(tuple(sorted(mix)) for mix in mixed.mixes[at])
    same = [i for i, mix in enumerate(mixes) if tuple(tuple(sorted(m)) for m in mix) == found]
    assert same, (mixed.mixes[at], drawn)
    assert points[same[0], :2] == pytest.approx([mixed.seconds[at], mixed.host[at]], rel=1e-12, abs=1e-12)


def check_fastest(seed: int, hosting: bool = False) -> tuple[int, int, int]:
    """Stages drawn, those with two policies of a kind in the fastest, and those that nothing fits; `hosting` where some layer
    must keep something on its host."""
    random = np.random.default_rng(seed)
    host = seed % 3 == 2 or hosting
    drawn = draw(random, KINDS[seed % len(KINDS)], host)
    limited = bool(np.isfinite(drawn.room.host).any())
    offers = tuple(o.unbeaten(limited, hosting) for o in drawn.offers)
    found = fastest(offers, drawn.counts, drawn.room, hosting)
    mixed = nothing = 0
    for e in range(len(drawn.counts)):
        ways = every_way(drawn, e)
        ways = some_of(ways, (ways[0][:, 1] <= drawn.room.host[e]) & (ways[0][:, 2] >= hosting))
        least = ways[0][:, 0].min(initial=np.inf)
        assert found.seconds[e] == pytest.approx(least, rel=1e-12), (seed, e, drawn)
        nothing += not len(ways[0])
        if len(ways[0]):
            flaws_of(drawn, e, found, e, ways)
            mixed += any(len(mix) > 1 for mix in found.mixes[e])
    return len(drawn.counts), mixed, nothing


def check_spared(seed: int) -> int:
    """Ways that spare hosts, checked."""
    random = np.random.default_rng(10_000 + seed)
    drawn = draw(random, KINDS[seed % len(KINDS)], host=True, stages=6)
    within = drawn.counts @ [o.seconds.max() for o in drawn.offers] * random.uniform(0.5, 1.1, 6)
    hosting = seed % 2 == 1
    offers = tuple(o.unbeaten(True, hosting) for o in drawn.offers)
    of, found, whole = within_hosts(offers, drawn.counts, drawn.room, within, hosting)
    assert whole
    for e in range(6):
        ways = every_way(drawn, e)
        ways = some_of(ways, ways[0][:, 0] <= within[e])
        here = np.flatnonzero(of == e).tolist()
        away = [any(code >> HOST for mix in found.mixes[at] for code, _ in mix) for at in here]
        listed = np.stack([found.seconds[here], found.host[here], away], axis=1)
        for least in (0, 1) if hosting else (0,):
            expected = []  # fewer host bytes than anything as fast
            for seconds, host, _ in sorted(way for way in ways[0].tolist() if way[2] >= least):
                if not expected or host < expected[-1][1] * (1 - 1e-12):
                    expected.append([seconds, host])
            for point in expected:
                good = (listed[:, :2] <= np.array(point) * (1 + 1e-12) + 1e-12).all(axis=1)
                assert (good & (listed[:, 2] >= least)).any(), (seed, e, point, listed)
        for at in here:
            flaws_of(drawn, e, found, at, ways)
    return len(of)


def test_the_fastest_mixes_are_those_of_brute_force() -> None:
    stages, mixed, nothing = np.array([check_fastest(seed) for seed in range(60)]).sum(axis=0)
    assert mixed > stages * 0.2 and nothing > stages * 0.02, (stages, mixed, nothing)


def test_the_fastest_mixes_that_keep_something_on_a_host_are_those_of_brute_force() -> None:
    stages, mixed, nothing = np.array([check_fastest(seed, hosting=True) for seed in range(24)]).sum(axis=0)
    assert mixed > stages * 0.2 and nothing > stages * 0.02, (stages, mixed, nothing)


def test_what_is_not_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all mixes are looked at, none takes less than `least_s`, and those that are told cost what they say."""
    monkeypatch.setattr(several, "_FEW", (1,))
    monkeypatch.setattr(several, "_MOST", 0.0)
    left_open = 0
    for seed in range(48):
        drawn = draw(np.random.default_rng(20_000 + seed), KINDS[seed % len(KINDS)], host=True)
        found = fastest(tuple(o.unbeaten(host=True) for o in drawn.offers), drawn.counts, drawn.room)
        for e in range(len(drawn.counts)):
            ways = every_way(drawn, e)
            ways = some_of(ways, ways[0][:, 1] <= drawn.room.host[e])
            least = ways[0][:, 0].min(initial=np.inf)
            assert found.least_s[e] <= least * (1 + 1e-12) and least <= found.seconds[e] * (1 + 1e-12)
            if np.isfinite(found.seconds[e]):
                flaws_of(drawn, e, found, e, ways)
            left_open += bool(found.least_s[e] < found.seconds[e])
    assert left_open > 60


@pytest.mark.full
def test_the_fastest_mixes_are_those_of_brute_force_on_many() -> None:
    for seed in range(60, 2000):
        check_fastest(seed, hosting=seed % 2 == 1)


def test_every_way_to_spare_hosts_is_listed() -> None:
    assert sum(check_spared(seed) for seed in range(30)) > 200


@pytest.mark.full
def test_every_way_to_spare_hosts_is_listed_on_many() -> None:
    for seed in range(30, 500):
        check_spared(seed)
