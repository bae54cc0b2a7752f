"""Policies by tensor that a layer kind or a framework cannot have, one sentence each."""

from meshwright.costmodel.framework import Framework
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.tensors import (
    CODES,
    DROPPED,
    HOST,
    OTHER,
    POLICIES,
    TENSORS,
    away,
    bits,
    listed_tensors,
    named,
    simplest,
)


def policy_refusal(framework: Framework, kinds: tuple[LayerKind, ...], layout: Layout) -> str | None:
    """Why a layout's policies cannot be, None if they can. Policies that have a name and list nothing always can."""
    there = [tensor_bits(framework, kind) for kind in kinds]
    if layout.stage_policies and not framework.chooses:
        return f"recompute differs from stage to stage, which {framework.name} cannot; give one policy per layer kind"
    for stage, words in enumerate(layout.policy_words):
        for k, word in enumerate(words):
            kinds_of_word = range(len(kinds)) if len(words) == 1 else [k]
            if reason := _word_refusal(
                framework, word, layout, stage, [(i, there[i]) for i in kinds_of_word]
            ):
                return reason
    return None


def _word_refusal(
    framework: Framework, word: str, layout: Layout, stage: int, kinds: list[tuple[int, int]]
) -> str | None:
    """The same of one word for (kind, bits of its tensors)."""
    listed = [name for part in word.split("|") for name in listed_tensors(part.partition("*")[0]) or ()]
    by_tensor = any(listed_tensors(part.partition("*")[0]) is not None for part in word.split("|"))
    if not by_tensor:
        return None
    if not framework.chooses:
        return (
            f"recompute={word} chooses by tensor, which {framework.name} cannot; "
            f"use {', '.join(POLICIES[:-1])} or {POLICIES[-1]}"
        )
    known = [n for n in TENSORS if any(bits({n}) & has for _, has in kinds)]
    if absent := [n for n in listed if n not in known]:
        return f"recompute={word}: no such layer has the tensor {absent[0]}; it has {', '.join(known)}"
    for k, has in kinds:
        for code, _ in layout.mix(stage, k):
            if reason := _unable(framework, code, has):
                return f"recompute={word}: {reason}"
    return None


def _unable(framework: Framework, code: int, has: int) -> str | None:
    code = simplest(code, has)
    if named(code) in POLICIES and code in (CODES[named(code)], away(CODES[named(code)])):
        return None
    on_host = _names(code >> HOST & has)
    if moved := [n for n in on_host if n not in framework.offloads]:
        able = ", ".join(n for n in _names(has) if n in framework.offloads) or "nothing"
        return f"{framework.name} does not offload {moved[0]} by name; it can {able}"
    again = _names(code & has)
    if kept := [n for n in again if n not in framework.chooses and named(code) == OTHER]:
        return f"{framework.name} always saves {kept[0]}; add it to the list"
    apart = [n for n in (*again, *on_host) if n in DROPPED["mlp"]]
    if "unfused" in _names(has & ~code) and apart:
        return (
            f"unfused is saved only with the whole feed-forward part on the device, and {apart[0]} is not; "
            "leave unfused out of the list"
        )
    return None


def _names(some: int) -> list[str]:
    return [name for i, name in enumerate(TENSORS) if some >> i & 1]
