"""Parameters, FLOPs, caches, mixtures: questions of the topics params, kvcache, moe and flops.

What a case leaves out of a model is taken as the book takes it: gated, embedding untied, heads together as wide as NH.
A model without a quantity that the question needs (a vocabulary, a number of heads) is not made up: it stays unanswered.
"""

from book_answers import Given, UnansweredError, Value, answers
from meshwright.costmodel.counting import counts
from meshwright.costmodel.counting.activations import BOOK_POLICIES, saved_by
from meshwright.costmodel.counting.counts import FEED_FORWARD, PROJECTIONS, Part
from meshwright.costmodel.flops import TRAIN
from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.roofline.intensity import seconds_at
from meshwright.costmodel.textbook import textbook_model
from meshwright.hardware.chip import Chip
from meshwright.hardware.profile import book_chip

YEAR_S = 365 * 86400.0
HOUR_S = 3600.0
HEADLESS = {"N": 1, "K": 1, "H": 1}  # where attention plays no part


def model_of(given: Given, *, dense: bool = False, **stand_ins: int) -> ModelSpec:
    """The case's model.

    Args:
        dense: leave experts out.
        stand_ins: for letters that the case may leave out because they play no part in the question.
    """

    def letter(name: str) -> int:
        return stand_ins[name] if name in stand_ins and not given.has(name) else whole(given, name)

    def ffn() -> int:
        return round(given.number("F_over_D") * letter("D")) if given.has("F_over_D") else letter("F")

    if given.has("NH") or flag(given, "NH_equals_D"):
        if not flag(given, "MHA", not given.has("K")):
            raise UnansweredError("heads are given together and are not all alike")
        heads = (1, 1, whole(given, "NH") if given.has("NH") else letter("D"))
    else:
        heads = (letter("N"), letter("N") if flag(given, "MHA") else letter("K"), letter("H"))
    mixture = given.has("E", "k") and not dense
    return textbook_model(
        letter("D"),
        ffn(),
        letter("L"),
        *heads,
        letter("V"),
        experts=whole(given, "E") if mixture else 0,
        top_k=whole(given, "k") if mixture else 0,
        gated=flag(given, "gated_mlp", True),
        tied=flag(given, "tied_embeddings"),
    )


def flag(given: Given, key: str, default: bool = False) -> bool:
    return bool(given[key]) if given.has(key) else default


def whole(given: Given, key: str) -> int:
    value = given.number(key)
    if not value.is_integer():
        raise UnansweredError(f"input {key!r} is {value:g}, not a whole number")
    return int(value)


def word(given: Given, key: str, default: str) -> str:
    return str(given[key]) if given.has(key) else default


def element_bytes(given: Given) -> float:
    return given.number("dtype_bytes")


def hbm_bytes(given: Given) -> float:
    """Memory of one chip: given, or the book's."""
    for key, unit in (("hbm_B", 1.0), ("hbm_GB", 1e9)):
        if given.has(key):
            return given.number(key) * unit
    return float(chip_of(given).memory_bytes)


def chip_of(given: Given) -> Chip:
    """The chip of the case with the book's figures."""
    return book_chip(str(given["chip"]))


def parts(model: ModelSpec, *names: str, seq_len: int = 1, causal: bool = True) -> Part:
    """The named parts together."""
    found = counts.parts_of(model, seq_len, causal)
    return sum((found[name] for name in names if name in found), Part())


def of_book(model: ModelSpec) -> Part:
    """The whole model as the book counts it."""
    return counts.matrices(counts.parts_of(model, 1))


# Parameters


@answers(("params", "moe"), "params", "total")
def total_params(given: Given) -> Value:
    return of_book(model_of(given)).params


@answers("params", "attention")
def attention_params(given: Given) -> Value:
    return parts(model_of(given, V=1), *PROJECTIONS).params


@answers("params", "ffw")
def ffw_params(given: Given) -> Value:
    return parts(model_of(given, V=1), *FEED_FORWARD).params


@answers("params", "vocab")
def vocab_params(given: Given) -> Value:
    return parts(model_of(given), "embedding", "head").params


@answers("params", "attention_fraction")
def attention_fraction(given: Given) -> Value:
    return counts.layer_share(counts.parts_of(model_of(given, V=1), 1), *PROJECTIONS)


@answers("params", "bf16_bytes")
def bf16_bytes(given: Given) -> Value:
    return sum(counts.state_bytes({"parameters": 2}, of_book(model_of(given)).params).values())


def met_params(given: Given) -> float:
    """Parameters that a token meets: given, or of the model."""
    for key in ("active_params", "params"):
        if given.has(key):
            return given.number(key)
    return of_book(model_of(given)).active


# FLOPs of whole models and of runs


@answers(("params", "flops"), "flops_per_token")
def train_flops_per_token(given: Given) -> Value:
    return counts.rule_flops(met_params(given))


@answers("flops", "training")
def train_flops_of_tokens(given: Given) -> Value:
    return counts.rule_flops(met_params(given), given.number("tokens", 1.0))


@answers("flops", "forward")
def forward_flops_of_tokens(given: Given) -> Value:
    return counts.rule_flops(met_params(given), given.number("tokens", 1.0), training=False)


@answers(("params", "flops"), "total_flops", "total", "used_flops")
def run_flops(given: Given) -> Value:
    tokens = given.number("tokens")
    if given.has("flops_per_token"):
        return given.number("flops_per_token") * tokens
    return counts.rule_flops(met_params(given), tokens)


def peak(given: Given) -> float:
    for key in ("flops_per_s", "fp8_flops_per_s", "flops_per_s_bf16"):
        if given.has(key):
            return given.number(key)
    return chip_of(given).peak_flop_per_s("bf16") if given.has("chip") else given.number("flops_per_s")


@answers("flops", "available_flops")
def available_flops(given: Given) -> Value:
    return given.number("gpu_hours") * HOUR_S * peak(given)


@answers("flops", "mfu")
def mfu(given: Given) -> Value:
    return counts.utilisation(float(run_flops(given)), given.number("gpu_hours") * HOUR_S, peak(given))


@answers("flops", "t_per_token_one_chip")
def token_s(given: Given) -> Value:
    return seconds_at(float(train_flops_per_token(given)), peak(given))


@answers("flops", "years_on_one_chip")
def years(given: Given) -> Value:
    return seconds_at(float(run_flops(given)), peak(given)) / YEAR_S


# FLOPs by part of a layer, of B sequences of T tokens


def tokens_of(given: Given) -> float:
    return given.number("B") * given.number("T")


def trained(given: Given, model: ModelSpec, *names: str, causal: bool = False) -> float:
    """Training FLOPs of the named parts over all tokens; all keys of a sequence counted, as the book does."""
    return TRAIN * parts(model, *names, seq_len=whole(given, "T"), causal=causal).flops * tokens_of(given)


@answers("flops", "mlp_params")
def mlp_params(given: Given) -> Value:
    return parts(model_of(given, **HEADLESS, L=1, V=1), *FEED_FORWARD).params


@answers("flops", "mlp_train_flops")
def mlp_train_flops(given: Given) -> Value:
    return trained(given, model_of(given, **HEADLESS, L=1, V=1), *FEED_FORWARD)


@answers("flops", "attn_params")
def attn_params(given: Given) -> Value:
    return parts(model_of(given, F=1, L=1, V=1), *PROJECTIONS).params


@answers("flops", "attn_proj_train_flops")
def attn_proj_train_flops(given: Given) -> Value:
    return trained(given, model_of(given, F=1, L=1, V=1), *PROJECTIONS)


@answers("flops", "dot_attn_train_flops")
def dot_attn_train_flops(given: Given) -> Value:
    return trained(given, model_of(given, D=1, F=1, K=1, L=1, V=1), counts.KERNEL)


@answers("flops", "dot_attn_train_flops_causal_useful")
def dot_attn_useful(given: Given) -> Value:
    return trained(given, model_of(given, D=1, F=1, K=1, L=1, V=1), counts.KERNEL, causal=True)


@answers("flops", "unembed_params")
def unembed_params(given: Given) -> Value:
    return parts(model_of(given, **HEADLESS, F=1, L=1), "head").params


@answers("flops", "unembed_train_flops")
def unembed_train_flops(given: Given) -> Value:
    return trained(given, model_of(given, **HEADLESS, F=1, L=1), "head")


@answers("flops", "train_flops_coefficient")
def train_flops_coefficient(given: Given) -> Value:
    """Of B T D V, in the row of the vocabulary."""
    if not any(word in str(given["row"]).lower() for word in ("vocab", "embed", "head", "logit")):
        raise UnansweredError(f"row {given['row']!r} is not that of the vocabulary")
    return TRAIN * parts(textbook_model(1, 1, 1, 1, 1, 1, 1), "head").flops


@answers("flops", "T_where_attention_equals_matmul")
def crossover(given: Given) -> Value:
    if set(given) == {"D"}:
        return counts.rule_crossover(whole(given, "D"))
    return _found(counts.crossover(model_of(given, L=1, V=1), "layers"))


@answers("flops", "T_equal")
def projections_crossover(given: Given) -> Value:
    if not given.has("N"):
        if not flag(given, "MHA"):
            raise UnansweredError("heads are not given")
        return counts.rule_crossover(whole(given, "D"), "projections")
    return _found(counts.crossover(model_of(given, F=1, L=1, V=1), "projections"))


def _found(tokens: int | None) -> int:
    if tokens is None:
        raise UnansweredError("attention never overtakes")
    return tokens


@answers("flops", "extra_flops_per_layer")
def extra_flops(given: Given) -> Value:
    """Of all tokens of one layer, by the book's policies; where products are saved only attention counts."""
    policy, kernel_only = policy_of(str(given["policy"])), {"D": 1, "F": 1, "K": 1, "L": 1, "V": 1}
    model = model_of(given, **(kernel_only if policy == "big products" else {"L": 1, "V": 1}))
    saved = saved_by(BOOK_POLICIES[policy], model, load_framework("jax"), whole(given, "T"), causal=False)
    return saved.repeated_flops * tokens_of(given)


def policy_of(words: str) -> str:
    """The book's policy that a case names."""
    known = {"big products": ("matmul", "product", "seven", "7"), "block input": ("block", "input", "full")}
    for policy, marks in known.items():
        if any(mark in words.lower() for mark in marks):
            return policy
    raise UnansweredError(f"policy {words!r} is not known")
