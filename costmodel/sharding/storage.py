"""How arrays are stored: what each choice costs in collectives and in memory, for products computed in a given way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations_of
from math import prod

from meshwright.costmodel.sharding.asked import Asked, Local
from meshwright.costmodel.sharding.parse import Sharded, arrays_of, size_of
from meshwright.costmodel.sharding.reshard import Move


@dataclass(frozen=True)
class Stored:
    """One choice of how some arrays are stored, for products computed in a given way.

    Attributes:
        seconds, working: collectives and bytes of working copies, by product.
        held_bytes: of what is stored.
        before, after: moves by product.
    """

    homes: Mapping[str, Sharded]
    seconds: tuple[float, ...]
    working: tuple[float, ...]
    held_bytes: float
    before: tuple[tuple[Move, ...], ...]
    after: tuple[tuple[Move, ...], ...]

    def __add__(self, other: "Stored") -> "Stored":
        def sums(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(x + y for x, y in zip(a, b, strict=True))

        def joins(
            a: tuple[tuple[Move, ...], ...], b: tuple[tuple[Move, ...], ...]
        ) -> tuple[tuple[Move, ...], ...]:
            return tuple(x + y for x, y in zip(a, b, strict=True))

        return Stored(
            {**self.homes, **other.homes},
            sums(self.seconds, other.seconds),
            sums(self.working, other.working),
            self.held_bytes + other.held_bytes,
            joins(self.before, other.before),
            joins(self.after, other.after),
        )

    @property
    def peak_bytes(self) -> float:
        return self.held_bytes + max(self.working)


class Forms:
    """Which sharding each product takes and leaves, when computed in given places."""

    def __init__(self, asked: Asked, locals_: Sequence[Local]) -> None:
        self.asked = asked
        self.takes: list[tuple[str, int, Sharded]] = []
        self.leaves: dict[str, tuple[int, Sharded]] = {}
        for index, (product, local) in enumerate(zip(asked.products, locals_, strict=True)):
            for array in (product.x, product.w):
                self.takes.append((array.name, index, array.placed(local.places)))
            partial = tuple(a for d in product.summed for a in local.places[d])
            self.leaves[product.out.name] = index, product.out.placed(local.places, partial)

    def only(self, name: str) -> Sharded | None:
        """The sharding of an input that is taken once."""
        taken = [form for n, _, form in self.takes if n == name]
        return taken[0] if len(taken) == 1 and name not in self.leaves else None

    def stored(self, name: str, home: Sharded | None) -> Stored:
        """An array at home in a sharding; None for one that is only passed on."""
        count = len(self.asked.products)
        seconds, working = [0.0] * count, [0.0] * count
        before: list[tuple[Move, ...]] = [()] * count
        after: list[tuple[Move, ...]] = [()] * count
        start = home
        if name in self.leaves:
            index, natural = self.leaves[name]
            if home is None:
                start = natural
                working[index] += self.asked.held(natural)
            elif home != natural:
                after[index], seconds[index] = self.asked.path(natural, home)
                working[index] += self.asked.held(natural)
        for taken, index, form in self.takes:
            if taken == name and start is not None and start != form:
                moves, t = self.asked.path(start, form)
                before[index] += moves
                seconds[index] += t
                working[index] += self.asked.held(form)
        held = 0.0 if home is None else self.asked.held(home)
        homes = {} if home is None else {name: home}
        return Stored(homes, tuple(seconds), tuple(working), held, tuple(before), tuple(after))


def options_of(asked: Asked, forms: Forms) -> Iterator[list[Stored]]:
    """For each array, or arrays stored alike, what may be chosen."""
    arrays = {a.name: a for a in arrays_of(asked.products)}
    for name, array in arrays.items():
        if name in asked.like:
            continue
        followers = [arrays[f] for f, leader in asked.like.items() if leader == name]
        homes: list[Sharded | None]
        if name not in asked.free:
            homes = [array]
        elif name in asked.made:
            homes = [None]
        elif asked.memory_bytes is None and not followers and (form := forms.only(name)):
            homes = [form]  # nothing is better than to be stored as it is used
        else:
            homes = list(_homes(asked, array))
        options = []
        for home in homes:
            option = forms.stored(name, home)
            for follower in followers:
                assert home is not None
                as_leader = follower.placed({d: home.on(d) for d in home.dims})
                option = option + forms.stored(follower.name, as_leader)
            options.append(option)
        yield options


def _homes(asked: Asked, array: Sharded) -> Iterator[Sharded]:
    """Every sharding of an array that cuts it evenly."""
    ways, axes = asked.machine.mesh.ways, asked.axes
    for choice in combinations_of((None, *array.dims), repeat=len(axes)):
        places = {d: tuple(a for a, on in zip(axes, choice, strict=True) if on == d) for d in array.dims}
        if all(size_of(d, asked.sizes) % prod(ways[a] for a in on) == 0 for d, on in places.items()):
            yield array.placed(places)


def undominated(asked: Asked, options: list[Stored]) -> list[Stored]:
    """Options that no other beats in everything that counts."""

    def costs(option: Stored) -> tuple[float, ...]:
        memory = () if asked.memory_bytes is None else (option.held_bytes, *option.working)
        return (*option.seconds, *memory)

    kept: list[Stored] = []
    for option in sorted(options, key=lambda o: (costs(o), o.held_bytes)):
        if not any(all(a <= b for a, b in zip(costs(k), costs(option), strict=True)) for k in kept):
            kept.append(option)
    return kept
