"""An independent oracle for pipeline schedules: every rank's order of work, and the longest path through it.

Knows nothing of the cost model. Stages are ranks 0..p-1, each with v chunks. Chunk c of rank s runs the model's part
c * p + s, so a micro-batch meets part 0, 1, ... forward and the reverse backward; dualpipev turns, its second chunk
is part 2 p - 1 - s. Work is of three kinds: F forward, B gradients of the input, W gradients of the weights. What a
rank runs as one (a whole backward pass, or a forward and a backward that dualpipev overlaps) is one block: it starts
when all it needs is there, and what it makes is there when all of it is done.

Orders: GPipe and 1F1B as published (Huang et al. 2019, Narayanan et al. 2019), interleaved 1F1B as Megatron-LM deals
it (groups of p micro-batches per chunk, Narayanan et al. 2021), ZB-H1 and ZB-H2 by their description (Qi et al. 2023,
section 2: the order of 1F1B, with 2 (p - s) - 1 micro-batches in flight in H2, and each W as late as keeps stages
level), DualPipe by the eight phases of its repository (deepseek-ai/DualPipe, step), for p ranks that turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple


class Work(NamedTuple):
    """One forward, input or weight gradient of one micro-batch through one chunk of a rank."""

    kind: str
    chunk: int
    micro_batch: int


Block = tuple[Work, ...]


def order(schedule: str, rank: int, p: int, m: int, v: int = 1) -> list[Block]:
    """What a rank runs, in order."""
    if schedule == "dualpipev":
        return _DualPipe(rank, p, m).blocks
    if schedule in ("zb_h1", "zb_h2"):
        ahead, late = (p - rank, rank) if schedule == "zb_h1" else (2 * (p - rank) - 1, 2 * rank)
        return _split(min(ahead, m), late, m)
    forwards: list[Block] = [(Work("F", *_deal(k, p, v)),) for k in range(m * v)]
    backwards: list[Block] = [
        (Work("B", v - 1 - w.chunk, w.micro_batch), Work("W", v - 1 - w.chunk, w.micro_batch))
        for (w,) in forwards
    ]
    if schedule == "gpipe":
        return forwards + backwards
    warm_up = p - rank - 1 if schedule == "1f1b" else 2 * (p - rank - 1) + (v - 1) * p
    warm_up = min(warm_up, m * v)
    steady = list(chain.from_iterable(zip(forwards[warm_up:], backwards, strict=False)))
    return forwards[:warm_up] + steady + backwards[m * v - warm_up :]


def _deal(k: int, p: int, v: int) -> tuple[int, int]:
    """(chunk, micro-batch) of a rank's k-th forward: p micro-batches through one chunk, then the next."""
    if v == 1:
        return 0, k
    return k % (p * v) // p, k // (p * v) * p + k % p


def _split(ahead: int, late: int, m: int) -> list[Block]:
    """1F1B with so many forwards ahead, and so many weight gradients left behind; with none a backward pass is whole."""
    done = {"F": 0, "B": 0, "W": 0}
    out: list[Block] = []

    def run(*kinds: str) -> None:
        out.append(tuple(Work(kind, 0, done[kind]) for kind in kinds))
        for kind in kinds:
            done[kind] += 1

    for _ in range(ahead):
        run("F")
    while done["B"] < m:
        if late:
            run("B")
        else:
            run("B", "W")
        if done["B"] - done["W"] > late:
            run("W")
        if done["F"] < m:
            run("F")
    while done["W"] < m:
        run("W")
    return out


class _DualPipe:
    """Blocks of one rank of p that turn."""

    def __init__(self, rank: int, p: int, m: int) -> None:
        self.blocks: list[Block] = []
        self._forward, self._backward, self._late = [0, 0], [0, 0], list[Work]()
        before, after = p - rank - 1, rank + 1
        for _ in range(2 * before):
            self._run(self._f(0))
        for _ in range(after):
            self._run(self._f(0))
            self._run(self._f(1))
        for _ in range(before):
            self._put_off(1)
            self._catch_up()
            self._run(self._f(1))
        for turn in range(m - 2 * p + after):
            if turn == 0 and rank == p - 1:
                self._run(self._f(0))
                self._run(self._b(1))
            else:
                self._run(self._f(0) + self._b(1))
            self._run(self._f(1) + self._b(0))
        for _ in range(before):
            self._run(self._b(1))
            self._run(self._f(1) + self._b(0))
        # The second half of 2 (rank + 1) backward passes leaves weight gradients behind.
        for turn in range(2 * after):
            chunk = 1 - turn % 2
            if turn >= after:
                self._put_off(chunk)
            else:
                self._run(self._b(chunk))
        for _ in range(before):
            self._catch_up()
            self._put_off(0)
        while self._late:
            self._catch_up()

    def _f(self, chunk: int) -> Block:
        self._forward[chunk] += 1
        return (Work("F", chunk, self._forward[chunk] - 1),)

    def _b(self, chunk: int) -> Block:
        self._backward[chunk] += 1
        return tuple(Work(kind, chunk, self._backward[chunk] - 1) for kind in "BW")

    def _run(self, block: Block) -> None:
        self.blocks.append(block)

    def _put_off(self, chunk: int) -> None:
        now, later = self._b(chunk)
        self._run((now,))
        self._late.append(later)

    def _catch_up(self) -> None:
        self._run((self._late.pop(0),))


def held(schedule: str, rank: int, p: int, m: int, v: int = 1) -> set[tuple[float, float]]:
    """(activations in flight, weight gradients still to run) of a rank after each block, in whole stages.

    Activations are in flight until their input gradients are done. A weight gradient that starts counts until it
    ends, and so does the micro-batch whose input gradient runs beside it.
    """
    flying = late = 0
    out = set()
    for block in order(schedule, rank, p, m, v):
        kinds = [w.kind for w in block]
        flying += kinds.count("F")
        out.add((flying / v, late / v))
        whole = kinds.count("B") and kinds.count("W")
        flying -= kinds.count("B")
        late += 0 if whole else kinds.count("B")
        out.add((flying / v, late / v))
        late -= 0 if whole else kinds.count("W")
    assert flying == late == 0
    return out


def peak_in_flight(schedule: str, rank: int, p: int, m: int, v: int = 1) -> float:
    """Most activations a rank holds at once, in whole stages (chunks held / v)."""
    return max(flying for flying, _ in held(schedule, rank, p, m, v))


@dataclass(frozen=True)
class Run:
    """Seconds until all is done, and of the rank that is at work longest, from its first start to its last end."""

    makespan: float
    span: float


def peak_layers(rank: int, p: int, m: int, chunks: Sequence[int]) -> int:
    """Most layers whose activations a rank of interleaved 1F1B holds at once, of chunks of so many layers."""
    now = most = 0
    for block in order("interleaved", rank, p, m, len(chunks)):
        now += sum(chunks[w.chunk] for w in block if w.kind == "F")
        most = max(most, now)
        now -= sum(chunks[w.chunk] for w in block if w.kind == "B")
    assert now == 0
    return most


def simulate(
    schedule: str,
    seconds: dict[str, Sequence[float] | Sequence[Sequence[float]]],
    m: int,
    v: int = 1,
    hop_s: float = 0.0,
) -> Run:
    """Longest path through order on a rank and dependence between ranks.

    `seconds[kind][s]` is of a whole stage, each of its chunks taking 1/v, or lists them by chunk. `hop_s` passes between the end of a part
    on one rank and the start of the next part on another; it keeps nobody busy.
    """
    p = len(seconds["F"])
    plans = [_planned(schedule, seconds, s, p, m, v) for s in range(p)]
    done: dict[tuple[str, int, int], tuple[float, int]] = {}  # (kind, part, micro-batch) -> (end, rank)
    at, clock, start = [0] * p, [0.0] * p, [-1.0] * p
    while any(at[s] < len(plans[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while at[s] < len(plans[s]):
                made, needs, busy = plans[s][at[s]]
                if not all(n in done for n in needs):
                    break
                begin = clock[s]
                for end, rank in (done[n] for n in needs):
                    begin = max(begin, end + (hop_s if rank != s else 0.0))
                start[s] = begin if start[s] < 0 else start[s]
                clock[s] = begin + busy
                for made_here in made:
                    done[made_here] = clock[s], s
                at[s], moved = at[s] + 1, True
        assert moved, "the schedule waits for itself"
    return Run(max(clock), max(end - begin for end, begin in zip(clock, start, strict=True)))


def _planned(
    schedule: str,
    seconds: dict[str, Sequence[float] | Sequence[Sequence[float]]],
    rank: int,
    p: int,
    m: int,
    v: int,
) -> list[tuple[list[tuple[str, int, int]], list[tuple[str, int, int]], float]]:
    """Of each block of a rank in order: what it makes, what it needs of other blocks, and its seconds."""
    out = []
    for block in order(schedule, rank, p, m, v):
        made = [_part(schedule, w, rank, p) for w in block]
        needs = [n for x in made if (n := _needs(x, p * v - 1)) is not None and n not in made]
        out.append((made, needs, sum(_seconds(seconds[w.kind][rank], w.chunk, v) for w in block)))
    return out


def _seconds(of_stage: float | Sequence[float], chunk: int, v: int) -> float:
    return of_stage / v if isinstance(of_stage, int | float) else of_stage[chunk]


def _part(schedule: str, work: Work, rank: int, p: int) -> tuple[str, int, int]:
    turned = schedule == "dualpipev" and work.chunk
    return work.kind, 2 * p - 1 - rank if turned else work.chunk * p + rank, work.micro_batch


def _needs(made: tuple[str, int, int], last: int) -> tuple[str, int, int] | None:
    """What must be done before; None for the first forward."""
    kind, part, micro_batch = made
    if kind == "F":
        return ("F", part - 1, micro_batch) if part else None
    if kind == "W":
        return "B", part, micro_batch
    return ("F", last, micro_batch) if part == last else ("B", part + 1, micro_batch)
