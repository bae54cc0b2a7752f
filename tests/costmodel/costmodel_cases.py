"""Settings and random legal layouts that several cost-model tests share."""

import random
from functools import cache
from typing import Any

from meshwright.costmodel.comm import GROUPS, BestComm
from meshwright.costmodel.layout import CP_KINDS, DIMENSIONS, Layout, with_stages
from meshwright.costmodel.legal import check_layout, chunk_unit
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.placement import enumerate_placements
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting, setting
from meshwright.costmodel.tensors import POLICIES
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import MeshwrightError


@cache
def make_setting(
    model: str = "llama-3-8b",
    cluster: str = "v5p:4x4x4",
    sequences: int = 128,
    seq_len: int = 8192,
    host: bool = False,
    training: tuple[tuple[str, Any], ...] = (),
    **words: Any,
) -> Setting:
    """A setting from plain words; `host` gives the host memory and optimizer rate that offload asks for."""
    machine = parse_cluster(cluster, **({"host_memory": "2 TB", "cpu_update": "3 Gparam/s"} if host else {}))
    work = Training(sequences * seq_len, seq_len, **dict(training))
    return setting(load_model(model), machine, work, **words)


def is_legal(question: Setting, layout: Layout) -> bool:
    """Whether every rule admits the layout (stages written out, placement apart)."""
    try:
        check_layout(question, layout)
    except MeshwrightError:
        return False
    return True


def draw_layout(rng: random.Random, experts: bool, offload: bool) -> Layout:
    """A random layout that obeys the rules of `Layout` itself."""
    zero, cp = rng.randrange(4), rng.choice((1, 1, 2, 4))
    shard = rng.choice((1, 2, 4, 8)) if zero else 1
    pp, tp, replicate = (rng.choice((1, 1, 2, 4)) for _ in range(3))
    vpp = rng.choice((1, 2)) if pp > 1 else 1
    etp = rng.choice((1, tp)) if experts else 1
    stage = replicate * shard * cp * tp
    room = [e for e in (1, 2, 4, 8) if stage // etp % e == 0] if experts else [1]
    return Layout(
        dp_replicate=replicate,
        dp_shard=shard,
        zero=zero if shard * cp > 1 else 0,
        reshard=zero != 3 or shard * cp == 1 or rng.random() < 0.5,
        cp=cp,
        cp_kind=rng.choice(CP_KINDS),
        tp=tp,
        sp=rng.choice((True, False)),
        pp=pp,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else rng.choice(("gpipe" if pp > 1 else "1f1b", "1f1b")),
        ep=rng.choice(room),
        etp=etp,
        micro_batch=rng.choice((1, 2)),
        policies=(rng.choice(POLICIES),),
        offload=rng.choice(OFFLOADS) if offload else "none",
    )


@cache
def legal_layouts(question: Setting, count: int = 300, seed: int = 1) -> tuple[Layout, ...]:
    """Distinct random layouts that every rule and some placement admit, stages written out."""
    rng, levels = random.Random(seed), question.cluster.levels
    experts = any(k.ffn.experts for k in question.model.kinds)
    found: dict[Layout, None] = {}
    for _ in range(50 * count):
        layout = draw_layout(rng, experts, question.cluster.host_memory_bytes is not None)
        layout = with_stages(layout, question.model.layers, chunk_unit(question, layout.vpp))
        degrees = {d: getattr(layout, d) for d in DIMENSIONS}
        if is_legal(question, layout) and next(enumerate_placements(degrees, levels), None) is not None:
            found[layout] = None
        if len(found) == count:
            break
    assert len(found) > 20, "too few legal layouts to test on"
    return tuple(found)


def best_rows(question: Setting, rows: Rows) -> BestComm:
    """Every communicator of the rows at its fastest split."""
    degrees = {g: getattr(rows, g) for g in GROUPS}
    return BestComm(question.network, degrees)
