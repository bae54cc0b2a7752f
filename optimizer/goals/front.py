"""front(): the proven best plans of which none is better in both of two goals.

    time or cost, memory   the best plan, then the best in less memory than it fills, and so on down
    time or cost, chips    the best plan, then the best on fewer devices than it uses, and so on down
    time, cost             of the front of time and chips: at one count of devices both goals choose the same plan, and
    chips, cost            a plan that is no slower on no more devices is no dearer, so no other plan can be on it

Each step is a whole proof below a capacity or a count, so the walk misses no plan; of plans equal in the first goal
within rounding the one that is better in the second stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from meshwright.costmodel.doors import ModelSource, check_whole
from meshwright.costmodel.estimate import StepEstimate, digits
from meshwright.costmodel.goals import Goal
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.token_cost import cost_unit, per_million_tokens
from meshwright.costmodel.setting import Overlap, Setting, Streams
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.optimizer.decode import decode
from meshwright.optimizer.plan import SCHEMA_VERSION
from meshwright.optimizer.question import inputs_of, resolve
from meshwright.optimizer.reasons.headline import infeasible
from meshwright.optimizer.recommend import cut_short, space_of
from meshwright.optimizer.solve import Search, SolveOptions, Watch
from meshwright.optimizer.space import Space

AXES = ("time", "memory", "chips", "cost")


@dataclass(frozen=True)
class Point:
    """A plan of the front.

    Attributes:
        step_s: seconds for the batch asked for. device_bytes: on the fullest device. chips: used; a device is its share
            of one, so half a chip may be among them. cost: of a million tokens, in the front's `cost_unit`.
        slack: share of time and cost that rounding in the solver can hide.
        proven: nothing better was left open.
    """

    layout: Layout
    estimate: StepEstimate
    step_s: float
    device_bytes: float
    chips: int | float
    cost: float
    slack: float
    proven: bool

    def on(self, axis: str) -> float:
        """What the plan takes on an axis; less is better."""
        return {"time": self.step_s, "memory": self.device_bytes, "chips": self.chips, "cost": self.cost}[
            axis
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "layout": self.layout.to_dict(),
            "step_s": digits(self.step_s),
            "device_bytes": digits(self.device_bytes),
            "chips": self.chips,
            "cost": digits(self.cost),
            "slack": digits(self.slack),
            "proven": self.proven,
        }


@dataclass(frozen=True)
class Front:
    """Plans of a front by the first axis, the best first.

    Attributes:
        axes: the two goals. apart: share of memory or chips by which the next plan has less; 0 gives the whole front.
        open_end: why plans may be missing, empty where none is. stopped: the user ended the walk.
        solved: proofs that the walk took.
    """

    inputs: Mapping[str, Any]
    axes: tuple[str, str]
    points: tuple[Point, ...]
    cost_unit: str
    apart: float
    open_end: str
    stopped: bool
    solved: int

    @property
    def proven(self) -> bool:
        """No plan is missing but those that `apart` leaves out."""
        return not self.open_end

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the same bytes for the same question."""
        return {
            "schema_version": SCHEMA_VERSION,
            "inputs": self.inputs,
            "axes": list(self.axes),
            "points": [point.to_dict() for point in self.points],
            "cost_unit": self.cost_unit,
            "apart": digits(self.apart),
            "proven": self.proven,
            "open_end": self.open_end,
            "solved": self.solved,
        }


def front(
    model: ModelSource,
    cluster: Cluster | str,
    training: Training,
    axes: str = "time,chips",
    *,
    constraints: str | None = None,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str | None = None,
    launcher: str | None = None,
    points: int = 100,
    apart: float = 0.0,
    options: SolveOptions | None = None,
) -> Front:
    """The front of two goals; see `recommend` for what is not said here.

    Args:
        axes: two of time, memory, chips and cost, such as 'time,memory'.
        points: plans at most. apart: each next plan has less memory or fewer chips by this share at least.

    Raises:
        InputError: the question is wrong. Infeasible: proven that nothing fits.
    """
    given = resolve(
        model, cluster, training,
        efficiency=efficiency, overlap=overlap, comm_streams=comm_streams, framework=framework,
        launcher=launcher,
    )  # fmt: skip
    return front_in(given, axes, constraints, points=points, apart=apart, options=options)


def check_axes(axes: str) -> tuple[str, str]:
    """Two different goals that a front can be walked along.

    Raises:
        InputError, UnknownNameError: what else was given.
    """
    check_type("axes", axes, str, "two of time, memory, chips and cost, such as 'time,memory'")
    names = [word.strip() for word in axes.split(",")]
    for name in names:
        if name not in AXES:
            raise UnknownNameError("axis", name, AXES)
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(f"axes are {shown(axes)}; give two different ones, such as time,memory")
    if set(names) == {"memory", "chips"}:
        raise InputError("the axes memory and chips ask for no speed; give time or cost with one of them")
    return names[0], names[1]


def front_in(
    given: Setting,
    axes: str,
    constraints: str | None = None,
    *,
    points: int = 100,
    apart: float = 0.0,
    options: SolveOptions | None = None,
    watch: Watch | None = None,
) -> Front:
    """The same for a resolved question; `watch` may end the walk.

    Raises: as `front`.
    """
    chosen = check_axes(axes)
    check_whole(points=points)
    if isinstance(apart, bool) or not isinstance(apart, int | float) or not 0 <= apart < 1:
        raise InputError(f"apart is {shown(apart)}; give a share from 0 to below 1, such as 0.05")
    if apart and "cost" in chosen and "memory" not in chosen:
        raise InputError(
            f"apart thins a walk over memory or chips, and the axes {axes} need every count of chips; leave it out"
        )
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    cheapest = set(chosen) == {"cost", "memory"}
    space = space_of(replace(given, goal=Goal("cost" if cheapest else "step")), constraints)
    takes = "memory" if "memory" in chosen else "chips"
    walk = _Walk(space, replace(options or SolveOptions(), runner_ups=0), takes, apart, watch)
    found = list(walk.points(points))
    return Front(
        inputs=inputs_of(given, constraints),
        axes=chosen,
        points=undominated(found, chosen),
        cost_unit=cost_unit(given.cluster),
        apart=float(apart),
        open_end=walk.open_end,
        stopped=walk.stopped,
        solved=walk.solved,
    )


@dataclass
class _Walk:
    """Down a front: the best plan within what the one before it leaves."""

    space: Space
    options: SolveOptions
    takes: str  # memory or chips
    apart: float
    watch: Watch | None
    open_end: str = ""
    stopped: bool = False
    solved: int = 0

    def points(self, most: int) -> Iterator[Point]:
        """Plans in order; the same value may come again with less of what is taken."""
        limit: int | None = None
        for number in range(most + 1):
            if limit is not None and limit < 1:
                return
            if number == most:
                self.open_end = f"the walk ended after {most} plans; raise --points, or set them --apart"
                return
            search = self._search(limit)
            whole = search.run()
            self.solved += 1
            self.stopped = search.stopped
            if not search.best:
                if number == 0 and not search.undecided:
                    raise infeasible(search)
                if search.undecided:
                    self.open_end = cut_short(search, whole, "no further plan found")
                return
            point = self._point(search)
            if not point.proven:
                self.open_end = cut_short(search, whole, "a plan that may not be the best")
            yield point
            if self.stopped:
                return
            now = point.device_bytes if self.takes == "memory" else point.layout.devices
            limit = min(ceil(now) - 1, int(now * (1 - self.apart)))

    def _search(self, limit: int | None) -> Search:
        """For the best plan in so many bytes of a device, or on so many devices."""
        if self.takes == "chips":
            return Search(self.space, self.options, most_devices=limit, watch=self.watch)
        given = replace(self.space.setting, memory_limit_bytes=limit)
        return Search(Space(given, self.space.constraints), self.options, watch=self.watch)

    def _point(self, search: Search) -> Point:
        """The best plan of a search, by the cost model."""
        given, found = self.space.setting, search.ranked[0]
        layout, priced = decode(given, found)
        step_s = priced.step_s * given.training.sequences / priced.sequences
        return Point(
            layout=layout,
            estimate=priced,
            step_s=step_s,
            device_bytes=max(priced.stage_bytes),
            chips=given.cluster.chip.chips_of(layout.devices),
            cost=per_million_tokens(given.cluster, given.training, step_s * layout.devices),
            slack=found.slack_s / found.value_s,
            proven=min(search.undecided, default=float("inf")) >= found.value_s - found.slack_s,
        )


def undominated(points: Sequence[Point], axes: tuple[str, str]) -> tuple[Point, ...]:
    """Points that no other one matches on both axes and beats on one, by the first axis; times and costs that rounding
    cannot tell apart are equal."""
    first, second = axes
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.on(first), p.on(second))):
        if kept and point.on(second) >= kept[-1].on(second) * (1 - _told_apart(point, second)):
            continue
        while kept and point.on(first) <= kept[-1].on(first) * (1 + _told_apart(point, first)):
            kept.pop()
        kept.append(point)
    return tuple(kept)


def _told_apart(point: Point, axis: str) -> float:
    """Share below which two values on an axis are one."""
    return 2 * point.slack if axis in ("time", "cost") else 0.0
