"""Small questions of serving, and an oracle of plain loops that knows KV heads by the queries that ask them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from random import Random

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.inference.request import Pass, Request
from meshwright.costmodel.inference.seconds import Device, Machine, memory_bytes, pass_s
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.model import Ffn
from meshwright.costmodel.serving.layout import crossings_s, experts_s
from meshwright.costmodel.setting import ideal_network
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.search.architecture import counts_of, model_of
from meshwright.search.grid import Grid, list_shapes
from meshwright.search.law import Law, load_law
from meshwright.search.served.find import Limits, Pricer
from meshwright.search.served.slices import Part, parts_of
from meshwright.search.shape import Shapes

CASES = range(14)
CLUSTERS = ("v5e:2x2", "v5e:4x4", "h100:8x1", "h100:4x2", "v5p:2x2x1", "v5e:2x4")


@dataclass(frozen=True)
class Case:
    law: Law
    grid: Grid
    cluster: Cluster
    request: Request
    batch: int | None
    memory_bytes: float
    tpot_s: float
    ttft_s: float

    def holds(self, cell: "Cell") -> bool:
        return (
            cell.token_s <= self.tpot_s
            and cell.ttft_s <= self.ttft_s
            and cell.device_bytes <= self.memory_bytes
        )


@dataclass(frozen=True)
class Cell:
    """One shape on one part with one batch."""

    row: int
    part: Part
    batch: int
    loss: float
    token_s: float
    ttft_s: float
    device_bytes: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch * self.part.replicas / self.token_s


class Oracle:
    """One shape on one part: the cost model's own functions on one model, and by hand all that knows of KV heads."""

    def __init__(self, case: Case, row: int, part: Part) -> None:
        shapes, ends = list_shapes(case.grid).shapes, case.grid.ends
        self.case, self.row, self.part, self.model = case, row, part, model_of(shapes, row, ends)
        self.kind = self.model.kinds[0]
        self.loss = float(
            case.law.loss(case.law.columns(shapes[[row]], counts_of(shapes[[row]], ends))).loss[0]
        )
        one, ways = Device.of(case.cluster.chip, "bf16").decode, part.ways
        self.machine = Machine(
            one.flop_per_s * ways, one.attention_flop_per_s * ways, one.bytes_per_s * ways,
            one.expert_share, one.elementwise, one.layer_s,
        )  # fmt: skip
        # A device keeps every KV head that one of its query heads asks.
        a = self.kind.attention
        on_device = a.heads // ways
        self.kept = [
            {head * a.kv_heads // a.heads for head in range(on_device * d, on_device * (d + 1))}
            for d in range(ways)
        ]

    @property
    def cut(self) -> bool:
        """All devices alike, and no KV head on two of them unless each has that one alone."""
        a, sizes = self.kind.attention, [len(heads) for heads in self.kept]
        even = len(set(sizes)) == 1 and (sum(sizes) == a.kv_heads or sizes[0] == 1)
        return a.heads % self.part.ways == 0 and even and divides(self.part.ways, self.kind.ffn)

    def cell(self, batch: int) -> Cell:
        case, part, model = self.case, self.part, self.model
        layers, a, ways = model.layers, self.kind.attention, part.ways
        asked, heads = replace(case.request, batch=batch), max(map(len, self.kept))
        stack = Stack.of(model)
        held = memory_bytes(stack, asked)
        token = a.qk_head_dim + a.v_head_dim  # of one KV head
        kv_weights = layers * model.hidden * token * case.request.weight_bytes
        cache = layers * batch * (asked.prompt + asked.output) * token * case.request.kv_bytes
        alone = memory_bytes(stack, case.request)["activations"]
        device = heads * (kv_weights + cache)
        device += float(held["weights"] - a.kv_heads * kv_weights + alone) / ways
        return Cell(
            self.row, part, batch, self.loss,
            self._seconds(asked.decode) + min(self._network_s(n, batch) for n in part.networks),
            self._seconds(case.request.prefill) + part.prefill_s(model, case.request),
            device,
        )  # fmt: skip

    def _seconds(self, p: Pass) -> float:
        """A pass: the product that makes queries, keys and values and the kernel by the FLOPs and bytes of one device."""
        seconds = pass_s(Stack.of(self.model), p, self.machine)
        a, width, ways = self.kind.attention, self.model.hidden, self.part.ways
        queries, keys = a.heads * a.qk_head_dim / ways, max(map(len, self.kept)) * a.qk_head_dim
        flops = 2 * p.tokens * width * (queries + 2 * keys)
        moved = p.weight_bytes * width * (queries + 2 * keys)
        moved += 2 * p.tokens * (width / ways + queries + 2 * keys)  # one product, which reads its input once
        seconds["qkv"] = self.model.layers * self._slower(flops, self.machine.flop_per_s, moved)
        met = sum(p.cached + n + 1 for n in range(int(p.new)))
        flops = 4 * p.sequences * met * queries
        moved = p.sequences * (2 * p.new * 2 * queries + p.kv_bytes * (p.cached + p.new) * 2 * keys)
        seconds["core"] = self.model.layers * self._slower(flops, self.machine.attention_flop_per_s, moved)
        return float(sum(seconds.values()))

    def _slower(self, flops: float, flop_per_s: float, moved: float) -> float:
        ways = self.part.ways
        return max(flops / (flop_per_s / ways), moved / (self.machine.bytes_per_s / ways))

    def _network_s(self, network: Network, batch: int) -> float:
        """The residual's crossings and the experts' rows: a cache with whole heads is never exchanged."""
        if self.part.ways == 1:
            return 0.0
        crossings = crossings_s(self.model, network, group_of(network.sizes), batch)
        return crossings + self.model.layers * experts_s(self.kind, self.model.hidden, network, batch)


def divides(ways: int, ffn: Ffn) -> bool:
    """Widths or experts: experts go over as many ways as divide their number, the rest cuts each."""
    if ffn.width % ways:
        return False
    if not ffn.experts:
        return True
    over = max(d for d in range(1, ways + 1) if ways % d == 0 and ffn.experts % d == 0)
    return bool(ffn.expert_width % (ways // over) == 0)


def oracles(case: Case) -> list[Oracle]:
    """Every shape on every part that cuts it."""
    rows = range(len(list_shapes(case.grid).shapes))
    parts = parts_of(ideal_network(case.cluster), case.cluster.devices)
    return [oracle for row in rows for part in parts if (oracle := Oracle(case, row, part)).cut]


def kept_batches(case: Case, oracle: Oracle) -> list[Cell]:
    """By trying every batch, up to twice as far as the first that does not keep the limits."""
    good, batch, stop = [], 1, 0
    while not stop or batch <= stop:
        cell = oracle.cell(batch)
        if case.holds(cell):
            good.append(cell)
        elif not stop:
            stop = 2 * batch + 8
        batch += 1
    return good


@lru_cache
def drawn(seed: int) -> tuple[Case, tuple[Cell, ...]]:
    """A question with its good answers: all cells of least loss that keep the limits."""
    random = Random(seed)
    grid = Grid(
        source="drawn", vocab=32_000, tied=random.random() < 0.5,
        layers=tuple(sorted(random.sample((4, 8, 16, 32), 2))),
        width=tuple(sorted(random.sample((1024, 1536, 2048, 4096), 2))),
        head_dim=(128,), kv_heads=tuple(random.sample((1, 2, 3, 4, "heads"), 2)),
        ffn_ratio=(random.choice((1.0, 3.0)),), experts=((1, 1), random.choice(((8, 1), (8, 2), (6, 1)))),
        shared=random.choice(((0,), (0, 1))),
        rules=("heads_fill_width", "kv_heads_divide_heads", "whole_expert_width", "shared_beside_experts"),
    )  # fmt: skip
    request = Request(
        1, random.choice((128, 1024, 8192)), random.choice((1, 16, 512)), random.choice((1, 2)), 2
    )
    cluster = parse_cluster(CLUSTERS[seed % len(CLUSTERS)])
    batch = random.choice((None, None, None, 1, 3, 64))
    case = Case(load_law("plas-10b"), grid, cluster, request, batch, inf, inf, inf)
    every = [oracle.cell(batch or random.choice((1, 4, 30))) for oracle in oracles(case)]

    def limit(name: str) -> float:
        if seed % 5 == 2:  # some questions are left that no shape answers
            return 0.6 * min(float(getattr(o.cell(batch or 1), name)) for o in oracles(case))
        return float(random.choice([getattr(c, name) for c in every]) * random.uniform(0.9, 1.3))

    case = replace(
        case,
        memory_bytes=limit("device_bytes"),
        tpot_s=limit("token_s"),
        ttft_s=limit("ttft_s") if random.random() < 0.5 else inf,
    )
    able = [o for o in oracles(case) if any(case.holds(o.cell(b)) for b in ((batch,) if batch else (1, 4)))]
    least = min((o.loss for o in able), default=inf)
    best = [o for o in able if o.loss == least]
    good = [c for o in best for c in ([o.cell(batch)] if batch else kept_batches(case, o))]
    return case, tuple(good)


def pricer_of(case: Case, shapes: Shapes, limits: Limits) -> Pricer:
    device = Device.of(case.cluster.chip, "bf16").holding(case.memory_bytes)
    return Pricer(shapes, case.grid.ends, device, case.request, limits)
