"""Names of a layer's tensors, and codes and words for what becomes of each: saved, repeated or kept on the host.

A policy of one layer kind is one integer, so that a column of candidates can carry it: bit i says that backward makes
TENSORS[i] again, bit HOST + i that the tensor is saved on the host. Zero saves everything on the device. As words it
is a name of POLICIES or `save(core+up)`, which lists what is saved beside the layer's input; `:offload(input+up)`
after either says which of that is saved on the host.
"""

import re
from collections.abc import Iterable, Sequence

from meshwright.hardware.errors import LayoutError, UnknownNameError, shown

# Named after the operator that makes them; `input` is the layer's input, which nothing in the layer can make again.
# `unfused` stands for the intermediate results of the feed-forward part's elementwise work that a framework saves
# beside the others (`Framework.unfused_factor`).
TENSORS = (
    "input", "norm1", "latent", "qkv", "core", "out", "norm2",
    "router", "up", "act", "expert_up", "expert_act", "expert_down", "unfused",
)  # fmt: skip
# Bit of the policy that is not chosen yet: saves as little as any policy of its offload class and repeats nothing, so
# what it costs is below every policy's. For bounds only; no layout can name it.
OPEN = 1 << len(TENSORS)
HOST = len(TENSORS) + 1

_ELEMENTWISE = frozenset({"norm1", "norm2", "act", "expert_act", "unfused"})
_FEED_FORWARD = frozenset(
    {"norm2", "router", "up", "act", "expert_up", "expert_act", "expert_down", "unfused"}
)
# What each named policy does not save.
DROPPED: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "elementwise": _ELEMENTWISE,
    "attention": frozenset({"core"}),
    "mlp": _FEED_FORWARD,
    "full": frozenset(TENSORS) - {"input"},
}
POLICIES = tuple(DROPPED)
# What a constraint calls every policy that has no name.
OTHER = "tensors"

# (policy, layers) of one layer kind on a stage; None where all of its layers have the policy.
Mix = tuple[tuple[int, int | None], ...]
NO_LAYERS = "-"

_WORD = re.compile(r"(?:([a-z]+)|save\(([\w+]*)\))(?::offload\(([\w+]+)\))?", re.ASCII)


def bits(names: Iterable[str]) -> int:
    """One bit per tensor."""
    return sum(1 << TENSORS.index(name) for name in set(names))


CODES = {name: bits(dropped) for name, dropped in DROPPED.items()}
_ALL = bits(TENSORS)


def away(code: int) -> int:
    """The policy that saves the same, all of it on the host."""
    return code | (_ALL & ~code) << HOST


def named(code: int) -> str:
    """The name of a policy by what it repeats, wherever it saves the rest; OTHER where it has none."""
    return _NAMES.get(code & _ALL, OTHER)


_NAMES = {code: name for name, code in CODES.items()}


def simplest(code: int, present: int) -> int:
    """The policy that is the same where only the tensors of `present` exist, as a named one if it can be.

    Args:
        present: bits of the tensors that a layer kind has.
    """
    on_host = code >> HOST & present
    for number in CODES.values():
        if number & present == code & present:
            everything = on_host == present & ~number
            return away(number) if everything else number | on_host << HOST
    return code & present | _ALL & ~present | on_host << HOST


def code_of(word: str, offloads: bool) -> int:
    """The code of a policy's word; `offloads` where a policy that lists none keeps all it saves on the host.

    Raises:
        LayoutError, UnknownNameError: the word does not read, names no tensor, or offloads what is not saved.
    """
    match = _WORD.fullmatch(word) if isinstance(word, str) else None
    if match is None or (match[1] is not None and match[1] not in CODES):
        raise LayoutError(
            f"recompute={shown(word)} is not one of {', '.join(POLICIES)}, and no list of what is saved, "
            "such as save(core+up)"
        )
    code = CODES[match[1]] if match[1] else CODES["full"] & ~bits(_listed(word, match[2]))
    if match[3] is None:
        return away(code) if offloads else code
    on_host = bits(_listed(word, match[3]))
    if again := on_host & code:
        raise LayoutError(
            f"recompute={shown(word)} keeps {', '.join(_names(again))} on the host and does not save it; save it, "
            "or leave it out of the list"
        )
    return code | on_host << HOST


def mix_of(word: str, offloads: bool) -> Mix:
    """The policies of `full*3|none*5`, or of a single word; none of NO_LAYERS.

    Raises:
        LayoutError, UnknownNameError: as `code_of`; or a part without its number of layers.
    """
    if word == NO_LAYERS:
        return ()
    parts = word.split("|") if isinstance(word, str) else [word]
    if len(parts) == 1 and "*" not in str(word):
        return ((code_of(word, offloads), None),)
    mix = []
    for part in parts:
        policy, times, layers = part.partition("*")
        if not times or not re.fullmatch(r"[1-9]\d{0,5}", layers, re.ASCII):
            raise LayoutError(
                f"recompute={shown(word)}: {shown(part)} does not say for how many layers; write full*3|none*5"
            )
        mix.append((code_of(policy, offloads), int(layers)))
    return tuple(mix)


def listed_tensors(word: str) -> list[str] | None:
    """Tensors that a policy's word lists; None where it is a name alone."""
    match = _WORD.fullmatch(word)
    lists = [] if match is None else [text for text in (match[2], match[3]) if text is not None]
    return [name for text in lists for name in text.split("+") if name] if lists else None


def lists_offload(word: str) -> bool:
    """Whether a policy's word says which tensors are on the host."""
    return ":" in word


def word_of(code: int, present: int = _ALL) -> str:
    """The word of a code, without what is on the host where that is nothing or all that is saved."""
    word = named(code)
    if word == OTHER:
        word = f"save({'+'.join(_names(present & ~code & ~1))})"
    on_host = code >> HOST & present
    return word if on_host in (0, present & ~code) else f"{word}:offload({'+'.join(_names(on_host))})"


def words_of(
    mixes: Sequence[Sequence[Sequence[tuple[int, int]]]], present: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    """Words of the policies of one layout, stage by stage and kind by kind; inverse of `mix_of`.

    Where they do not all keep all or nothing on the host, each lists what it keeps there.

    Args:
        mixes: (policy, layers) of each stage and layer kind; none where the stage has no layer of the kind.
        present: bits of the tensors that each layer kind has.
    """
    every = {(code, k) for stage in mixes for k, mix in enumerate(stage) for code, _ in mix}
    listed = any(lists_offload(word_of(code, present[k])) for code, k in every)
    listed |= len({code >> HOST & present[k] > 0 for code, k in every}) > 1
    return tuple(
        tuple(
            "|".join(
                _listing(code, present[k], listed) + (f"*{layers}" if len(mix) > 1 else "")
                for code, layers in mix
            )
            or NO_LAYERS
            for k, mix in enumerate(stage)
        )
        for stage in mixes
    )


def _listing(code: int, present: int, listed: bool) -> str:
    word, on_host = word_of(code, present), code >> HOST & present
    if not listed or not on_host or lists_offload(word):
        return word
    return f"{word}:offload({'+'.join(_names(on_host))})"


def _names(some: int) -> list[str]:
    return [name for i, name in enumerate(TENSORS) if some >> i & 1]


def _listed(word: str, text: str) -> list[str]:
    names = text.split("+") if text else []
    for name in names:
        if not name:
            raise LayoutError(
                f"recompute={shown(word)}: a tensor is missing in {shown(text)}; write save(core+up)"
            )
        if name not in TENSORS:
            raise UnknownNameError("tensor", name, TENSORS, f"recompute={shown(word)}", few=len(TENSORS))
    return names
