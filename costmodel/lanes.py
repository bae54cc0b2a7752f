"""Lanes: a layer kind under one policy, the unit in which stages count their layers.

Stages may give layers of one kind different policies. A table of R rows then has a lane per (kind, policy) that occurs,
and counts layers by stage and lane; where all stages agree lanes are the layer kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.model import ModelSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class Lanes:
    """Lanes of some layouts.

    Attributes:
        kinds: layer kind of each lane, [Q].
        policies: policy of each lane in each layout, [R, Q]; a layout with fewer repeats its first.
    """

    kinds: tuple[int, ...]
    policies: NDArray[np.int64]

    @staticmethod
    def of(model: ModelSpec, layouts: Sequence[Layout]) -> "Lanes":
        kinds = range(len(model.kinds))
        stages = [range(len(x.policy_words)) for x in layouts]
        found = [
            [list(dict.fromkeys(code for s in of for code, _ in x.mix(s, k))) or [0] for k in kinds]
            for x, of in zip(layouts, stages, strict=True)
        ]
        most = [max(len(codes[k]) for codes in found) for k in kinds]
        padded = [
            [code for k in kinds for code in codes[k] + codes[k][:1] * (most[k] - len(codes[k]))]
            for codes in found
        ]
        return Lanes(tuple(k for k in kinds for _ in range(most[k])), np.array(padded, np.int64))


def kind_counts(model: ModelSpec, layouts: Sequence[Layout]) -> Array:
    """Layers of each kind on each stage [R, S, K], zero beyond a row's stages.

    Plain stages hold consecutive layers. Interleaved ones hold v chunks dealt round, chunk c of stage s following chunk c of
    stage s - 1; each is of whole pattern periods, so how long chunks are is no matter.
    """
    pattern = np.array(model.pattern)
    counts = np.zeros((len(layouts), max(x.pp for x in layouts), len(model.kinds)))
    of_kind = np.bincount(pattern, minlength=len(model.kinds))
    for row, layout in enumerate(layouts):
        if layout.vpp > 1:
            counts[row, : layout.pp] = np.outer(layout.layers_per_stage, of_kind) / len(pattern)
            continue
        at = 0
        for stage, layers in enumerate(layout.layers_per_stage):
            np.add.at(counts[row, stage], pattern[at : at + layers], 1)
            at += layers
    return counts


def lane_counts(model: ModelSpec, layouts: Sequence[Layout], lanes: Lanes) -> Array:
    """Layers of each lane on each stage, [R, S, Q]."""
    by_kind = kind_counts(model, layouts)
    first = [lanes.kinds.index(k) for k in range(len(model.kinds))]
    counts = np.zeros((*by_kind.shape[:2], len(lanes.kinds)))
    for row, layout in enumerate(layouts):
        codes = lanes.policies[row].tolist()
        for stage in range(layout.pp) if layout.stage_policies else ():
            for k in range(len(model.kinds)):
                for code, layers in layout.mix(stage, k):
                    lane = codes.index(code, first[k])
                    counts[row, stage, lane] += by_kind[row, stage, k] if layers is None else layers
        if not layout.stage_policies:
            counts[row][:, first] = by_kind[row]
    return counts


def wrong_mix(model: ModelSpec, layout: Layout) -> str | None:
    """Where the policies of a stage are not for as many layers as it has; None where all are."""
    by_kind = kind_counts(model, [layout])[0]
    for stage in range(layout.pp) if layout.stage_policies else ():
        for k, kind in enumerate(model.kinds):
            mix, layers = layout.mix(stage, k), int(by_kind[stage, k])
            told = sum(layers if n is None else n for _, n in mix)
            if told != layers:
                return (
                    f"recompute of stage {stage} is for {told} {kind.name} layers, it has {layers}; "
                    f"make them {layers}, or give one policy without a number"
                )
    return None
