"""A model stated by its letters instead of a configuration: D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256.

The letters are those of jax-ml/scaling-book, chapter 4. Layers are alike: attention, then a feed-forward part, each
behind a norm of D, without biases; a last norm before the head.
"""

from collections.abc import Mapping

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers.blocks import (
    MAX_PARAMS,
    attention,
    gated_ffn,
    head,
    mixture,
    norm,
    plain_ffn,
    table,
)
from meshwright.costmodel.readers.fields import MAX_LAYERS, MAX_SIZE
from meshwright.hardware.errors import ModelError, UnitError, UnknownNameError, check_type, shown
from meshwright.hardware.units import parse_count

LETTERS = {
    "D": "model width",
    "F": "feed-forward width, of one expert where there are experts",
    "L": "layers",
    "N": "query heads",
    "K": "kv heads",
    "H": "width of a head",
    "V": "vocabulary",
}
EXPERT_LETTERS = {"E": "experts per layer", "k": "experts that a token meets"}
WORDS = {"mlp": ("gated", "plain"), "tied": ("no", "yes")}  # the first is meant where none is given


def textbook_model(
    width: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    *,
    experts: int = 0,
    top_k: int = 0,
    gated: bool = True,
    tied: bool = False,
    name: str = "textbook",
) -> ModelSpec:
    """D, F, L, N, K, H, V and, for a mixture, E and k (0 and 0: dense).

    Args:
        gated: three matrices in the feed-forward part (18BTDF training FLOPs), else two (12BTDF).
        tied: the token table is the head too.

    Raises:
        ModelError: a size that is no whole number above zero, N no multiple of K, k above E, or E without k.
    """
    given = {"D": width, "F": ffn, "L": layers, "N": heads, "K": kv_heads, "H": head_dim, "V": vocab}
    for letter, value in (given | ({"E": experts, "k": top_k} if experts or top_k else {})).items():
        _check_size(letter, value)
    if heads % kv_heads:
        raise ModelError(
            f"N={heads} is not a multiple of K={kv_heads}: every kv head serves the same number of query heads; "
            f"make K a divisor of {heads}"
        )
    if top_k > experts:
        raise ModelError(f"k={top_k} is more than the E={experts} experts; use k <= {experts}")
    a = Attention(heads, kv_heads, head_dim, head_dim)
    if experts:
        part = Ffn(0, gated, experts, top_k, ffn)
        matrices = mixture(width, part)
    else:
        part = Ffn(ffn, gated)
        matrices = gated_ffn(width, ffn) if gated else plain_ffn(width, ffn, bias=False)
    norms = norm("input_norm", width) + norm("post_attention_norm", width)
    kind = LayerKind("moe" if experts else "dense", attention(width, a) + norms + matrices, a, part, norms=2)
    model = ModelSpec(
        name=name,
        model_type="textbook",
        hidden=width,
        vocab=vocab,
        kinds=(kind,),
        pattern=(0,) * layers,
        embedding=table(vocab, width),
        head=norm("final_norm", width) + head(vocab, width, tied),
        tied=tied,
    )
    if model.params >= MAX_PARAMS:
        raise ModelError(
            f"the sizes make {model.params:.3e} parameters and the cost model is exact below {MAX_PARAMS:.1e}; "
            f"check the sizes"
        )
    return model


def parse_shape(text: str) -> ModelSpec:
    """The model of `D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256[,E=16,k=2][,mlp=plain][,tied=yes]`.

    Raises:
        ModelError: a part that is not letter=size, an unknown, repeated or missing letter, a size or word out of
            range, N no multiple of K, k above E.
    """
    example = "D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256"
    check_type("shape", text, str, f"letters like {example}", ModelError)
    given: dict[str, str] = {}
    for part in text.split(","):
        letter, equals, value = (piece.strip() for piece in part.partition("="))
        if not (letter and equals and value):
            raise ModelError(f"cannot read {shown(part)} in a shape; write {example}")
        if letter not in LETTERS | EXPERT_LETTERS | WORDS:
            raise UnknownNameError("letter", letter, [*LETTERS, *EXPERT_LETTERS, *WORDS], "of a shape")
        if letter in given:
            raise ModelError(f"{letter} is given twice in a shape; keep one")
        given[letter] = value
    if missing := [letter for letter in LETTERS if letter not in given]:
        names = ", ".join(f"{letter} ({LETTERS[letter]})" for letter in missing)
        raise ModelError(f"a shape needs {names}; write {example}")
    if ("E" in given) != ("k" in given):
        has, lacks = ("E", "k") if "E" in given else ("k", "E")
        raise ModelError(f"a shape with {has} needs {lacks} ({EXPERT_LETTERS[lacks]}) too; add {lacks}=")
    sizes = {letter: _size(letter, given[letter]) for letter in LETTERS}
    words = {name: _word(name, given) for name in WORDS}
    return textbook_model(
        *sizes.values(),
        experts=_size("E", given["E"]) if "E" in given else 0,
        top_k=_size("k", given["k"]) if "k" in given else 0,
        gated=words["mlp"] == "gated",
        tied=words["tied"] == "yes",
        name=",".join(f"{letter}={value}" for letter, value in given.items()),
    )


def _size(letter: str, text: str) -> int:
    try:
        return parse_count(text)
    except UnitError as error:
        raise ModelError(f"{letter} in a shape: {error}") from None


def _word(name: str, given: Mapping[str, str]) -> str:
    word, known = given.get(name, WORDS[name][0]), WORDS[name]
    if word not in known:
        raise ModelError(
            f"{name}={word[:20]!r} in a shape; write {' or '.join(f'{name}={w}' for w in known)}"
        )
    return word


def _check_size(letter: str, value: int) -> None:
    what = f"{letter} ({(LETTERS | EXPERT_LETTERS)[letter]})"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{what} must be a whole number, not {shown(value)}")
    most = MAX_LAYERS if letter in "LEk" else MAX_SIZE
    if not 1 <= value <= most:
        raise ModelError(f"{what} is {shown(value)}; give a number from 1 to {most}")
