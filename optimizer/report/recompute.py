"""Recompute policies as the pages write them: stage by stage in full, or summed over the model.

A layout's text, `--json` and the plan file have them in full.
"""

from collections.abc import Sequence
from itertools import groupby

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.tensors import NO_LAYERS, listed_tensors

_FEW = 3  # policies that a cell still names

Stages = Sequence[Sequence[str]]  # words of each stage by kind, or a single entry for all stages


def by_stage(layout: Layout, kinds: Sequence[str]) -> list[str]:
    """A line for each run of equal stages: `stages 0-3: full`; where all agree `elementwise`, or per layer kind
    `dense: none, moe: full`."""
    runs, at = [], 0
    for words, run in groupby(layout.policy_words):
        length = len(list(run))
        where = f"stage {at}" if length == 1 else f"stages {at}-{at + length - 1}"
        runs.append((where, _by_kind([_wrapped(word) for word in words], kinds)))
        at += length
    return [runs[0][1]] if len(runs) == 1 else [f"{where}: {words}" for where, words in runs]


def summed(stages: Stages, layers: Sequence[int], kinds: Sequence[str], *, brief: bool = True) -> str:
    """`full`, `68 save 5 tensors, 12 none`, per layer kind `dense: none, moe: 27 full, else none` or `moe: 4 policies`.

    Args:
        layers: of each stage; of several layer kinds a layout does not say how many layers of each a stage holds.
        brief: what a policy without a name saves is counted, not listed.
    """
    lanes = max(map(len, stages))
    return _by_kind([_of_kind(stages, layers, k, lanes, brief) for k in range(lanes)], kinds)


def _wrapped(word: str) -> str:
    """The word with places where a line may end."""
    return word.replace("|", " | ").replace(":offload", " :offload")


def _by_kind(words: Sequence[str], kinds: Sequence[str]) -> str:
    if len(words) == 1:
        return words[0]
    named = kinds if len(kinds) == len(words) else [f"kind {k}" for k in range(len(words))]
    return ", ".join(f"{kind}: {word}" for kind, word in zip(named, words, strict=True) if word != NO_LAYERS)


def _of_kind(stages: Stages, layers: Sequence[int], kind: int, lanes: int, brief: bool) -> str:
    counts: dict[str, int] = {}
    uncounted = set()
    for stage, layers_here in enumerate(layers or [0] * len(stages)):
        words = stages[stage if len(stages) > 1 else 0]
        word = words[kind if len(words) > 1 else 0]
        for part in word.split("|") if word != NO_LAYERS else ():
            policy, several, number = part.partition("*")
            name = _brief(policy) if brief else policy
            if not several and (lanes > 1 or not layers):
                uncounted.add(name)
            counts[name] = counts.get(name, 0) + (int(number) if several else layers_here)
    if len(counts) <= 1:
        return next(iter(counts), NO_LAYERS)
    if len(counts) > _FEW or len(uncounted) > 1:
        return f"{len(counts)} policies"
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    told = [f"{number} {name}" for name, number in most_first if name not in uncounted]
    return ", ".join((*told, *(f"else {name}" for name in uncounted)))


def _brief(policy: str) -> str:
    """A name as it is; `save 5 tensors` of a list, `(2 on host)` of those that the host keeps."""
    saved, _, hosted = policy.partition(":")
    name = saved
    if saved.startswith("save("):
        count = len(listed_tensors(saved) or ())
        name = f"save {count} tensor{'' if count == 1 else 's'}"
    on_host = len(listed_tensors(policy) or ()) - len(listed_tensors(saved) or ()) if hosted else 0
    return f"{name} ({on_host} on host)" if on_host else name
