"""Forms of loss laws: each is one function from coefficients and columns to the terms of the loss.

A form's columns may have any shapes that broadcast; each term has the shape of what it reads, so a solver tabulates
a term by giving its variables along axes of their own. Symbols are those of the papers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Coefficients = Mapping[str, float]
Read = Mapping[str, Array]  # by the name of a variable

# What a law may read, and what the caller is to count.
VARIABLES: Mapping[str, str] = {
    "layers": "number of layers",
    "width": "width of the model",
    "ffn_ratio": "activated feed-forward width over the model's width",
    "activation": "chosen experts over all experts, 1 where dense",
    "kv_width": "width of the keys of a token in one layer",
    "gqa": "query heads over key/value heads",
    "experts": "number of experts, 1 where dense",
    "top_k": "experts chosen per token",
    "parameters": "parameters in all, every expert counted",
    "active_parameters": "parameters that a token meets",
    "tokens": "training tokens",
    "granularity": "how finely experts are cut, as the law's paper counts it",
    "shared_share": "shared experts over active ones",
}


@dataclass(frozen=True)
class Form:
    """One functional form.

    Attributes:
        coefficients: names that a law of this form gives.
        reads: variables of each term.
        terms: values of the terms, by name.
        log10: the terms sum to log10 of the loss, not to the loss.
    """

    coefficients: tuple[str, ...]
    reads: Mapping[str, tuple[str, ...]]
    terms: Callable[[Coefficients, Read], dict[str, Array]]
    log10: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """All that the terms read, in their order."""
        return tuple(dict.fromkeys(name for names in self.reads.values() for name in names))

    def joined(self, terms: Mapping[str, Array]) -> Array:
        """The loss that the terms make."""
        total = sum(terms.values(), start=np.asarray(0.0))
        return np.asarray(np.power(10.0, total) if self.log10 else total)


def plas(k: Coefficients, at: Read) -> dict[str, Array]:
    """kl/l^al + kr rho^arho/(r^ar d^b1) + kd/(r^ar d^b2) + km/d_m^am + floor (arXiv 2602.10377 eq. 2, 15)."""
    d, thin = at["width"], at["ffn_ratio"] ** k["ar"]
    return {
        "depth": k["kl"] / at["layers"] ** k["al"],
        "sparsity": k["kr"] * at["activation"] ** k["arho"] / (thin * d ** k["b1"]),
        "capacity": k["kd"] / (thin * d ** k["b2"]),
        "kv": k["km"] / at["kv_width"] ** k["am"],
        "floor": np.asarray(k["floor"]),
    }


def plas_tokens(k: Coefficients, at: Read) -> dict[str, Array]:
    """PLAS' terms and kD/D^aD, for models of several numbers of training tokens."""
    return {**plas(k, at), "tokens": k["kD"] / at["tokens"] ** k["aD"]}


def width_depth(k: Coefficients, at: Read) -> dict[str, Array]:
    """A/w^a + B/l^b + C/N^c + D/T^d + floor (Gemstones, arXiv 2502.06857)."""
    return {
        "width": k["A"] / at["width"] ** k["a"],
        "depth": k["B"] / at["layers"] ** k["b"],
        "size": k["C"] / at["parameters"] ** k["c"],
        "tokens": k["D"] / at["tokens"] ** k["d"],
        "floor": np.asarray(k["floor"]),
    }


def size_tokens(k: Coefficients, at: Read) -> dict[str, Array]:
    """A/N^a + B/D^b + floor (Chinchilla, arXiv 2203.15556 approach 3)."""
    return {
        "size": k["A"] / at["parameters"] ** k["a"],
        "tokens": k["B"] / at["tokens"] ** k["b"],
        "floor": np.asarray(k["floor"]),
    }


def size_only(k: Coefficients, at: Read) -> dict[str, Array]:
    """A/N^a + floor: size alone, the least that a law of shapes has to beat."""
    return {"size": k["A"] / at["parameters"] ** k["a"], "floor": np.asarray(k["floor"])}


def aspect(k: Coefficients, at: Read) -> dict[str, Array]:
    """(A/N^a + B/D^b + floor) (1 + g (d/l)^c), multiplied out.

    Bian, Yan and Venkataraman (arXiv 2501.18107), who tie c and b to a; here the three are free.
    """
    base = size_tokens(k, at)
    flat = k["g"] * (at["width"] / at["layers"]) ** k["c"]
    return {**base, **{f"{name}_aspect": term * flat for name, term in base.items()}}


def routed(k: Coefficients, at: Read) -> dict[str, Array]:
    """log10 L = a log N + b log Eh + c log N log Eh + d, 1/Eh = 1/(E-1 + 1/(1/Es - 1/Em)) + 1/Em.

    Clark et al., arXiv 2202.01169 eq. 1 and table 3; N is the dense model's size, E = 1 gives Eh = Es.
    """
    size = np.log10(at["active_parameters"])
    start = 1 / (1 / k["e_start"] - 1 / k["e_max"])
    spread = -np.log10(1 / (at["experts"] - 1 + start) + 1 / k["e_max"])
    return {
        "size": k["a"] * size,
        "experts": k["b"] * spread,
        "joint": k["c"] * size * spread,
        "floor": np.asarray(k["d"]),
    }


def granular(k: Coefficients, at: Read) -> dict[str, Array]:
    """(g/G^gm + a)/N^al + b/D^be + floor; dense rows with a fit of their own (arXiv 2402.07871 eq. 9, table 1)."""
    dense, size, tokens = at["activation"] == 1, at["parameters"], at["tokens"]
    moe = (k["g"] / at["granularity"] ** k["gm"] + k["a"]) / size ** k["al"]
    return {
        "size": np.where(dense, k["dense_a"] / size ** k["dense_al"], moe),
        "tokens": np.where(dense, k["dense_b"] / tokens ** k["dense_be"], k["b"] / tokens ** k["be"]),
        "floor": np.asarray(k["floor"]),
    }


def sparsity(k: Coefficients, at: Read) -> dict[str, Array]:
    """a/N^al + b/D^be + c/(1-S)^lm + d/((1-S)^dl N^gm) + floor, 1 - S = K/E (arXiv 2501.12370 table 3)."""
    size, rho = at["parameters"], at["activation"]
    return {
        "size": k["a"] / size ** k["al"],
        "tokens": k["b"] / at["tokens"] ** k["be"],
        "sparsity": k["c"] / rho ** k["lm"],
        "joint": k["d"] / (rho ** k["dl"] * size ** k["gm"]),
        "floor": np.asarray(k["floor"]),
    }


def comprehensive(k: Coefficients, at: Read) -> dict[str, Array]:
    """(eG + f/G + mS^2 + nS)(1/N^al + k/Na^al + h Na/N) + a/N^al + b/D^be + c/Na^al + floor (arXiv 2509.23678)."""
    size, active, al = at["parameters"], at["active_parameters"], k["al"]
    grain, shared = at["granularity"], at["shared_share"]
    experts = k["e"] * grain + k["f"] / grain + k["m"] * shared**2 + k["n"] * shared
    return {
        "experts": experts * (1 / size**al + k["k"] / active**al + k["h"] * active / size),
        "size": k["a"] / size**al,
        "tokens": k["b"] / at["tokens"] ** k["be"],
        "active": k["c"] / active**al,
        "floor": np.asarray(k["floor"]),
    }


FORMS: Mapping[str, Form] = {
    "plas": Form(
        ("kl", "al", "kr", "arho", "b1", "kd", "b2", "ar", "km", "am", "floor"),
        {
            "depth": ("layers",),
            "sparsity": ("activation", "ffn_ratio", "width"),
            "capacity": ("ffn_ratio", "width"),
            "kv": ("kv_width",),
            "floor": (),
        },
        plas,
    ),
    "plas_tokens": Form(
        ("kl", "al", "kr", "arho", "b1", "kd", "b2", "ar", "km", "am", "kD", "aD", "floor"),
        {
            "depth": ("layers",),
            "sparsity": ("activation", "ffn_ratio", "width"),
            "capacity": ("ffn_ratio", "width"),
            "kv": ("kv_width",),
            "floor": (),
            "tokens": ("tokens",),
        },
        plas_tokens,
    ),
    "width_depth": Form(
        ("A", "a", "B", "b", "C", "c", "D", "d", "floor"),
        {
            "width": ("width",),
            "depth": ("layers",),
            "size": ("parameters",),
            "tokens": ("tokens",),
            "floor": (),
        },
        width_depth,
    ),
    "size_tokens": Form(
        ("A", "a", "B", "b", "floor"),
        {"size": ("parameters",), "tokens": ("tokens",), "floor": ()},
        size_tokens,
    ),
    "size": Form(("A", "a", "floor"), {"size": ("parameters",), "floor": ()}, size_only),
    "aspect": Form(
        ("A", "a", "B", "b", "g", "c", "floor"),
        {
            "size": ("parameters",),
            "tokens": ("tokens",),
            "floor": (),
            "size_aspect": ("parameters", "width", "layers"),
            "tokens_aspect": ("tokens", "width", "layers"),
            "floor_aspect": ("width", "layers"),
        },
        aspect,
    ),
    "routed": Form(
        ("a", "b", "c", "d", "e_start", "e_max"),
        {
            "size": ("active_parameters",),
            "experts": ("experts",),
            "joint": ("active_parameters", "experts"),
            "floor": (),
        },
        routed,
        log10=True,
    ),
    "granular": Form(
        ("a", "al", "b", "be", "g", "gm", "dense_a", "dense_al", "dense_b", "dense_be", "floor"),
        {
            "size": ("parameters", "granularity", "activation"),
            "tokens": ("tokens", "activation"),
            "floor": (),
        },
        granular,
    ),
    "sparsity": Form(
        ("a", "al", "b", "be", "c", "lm", "d", "dl", "gm", "floor"),
        {
            "size": ("parameters",),
            "tokens": ("tokens",),
            "sparsity": ("activation",),
            "joint": ("activation", "parameters"),
            "floor": (),
        },
        sparsity,
    ),
    "comprehensive": Form(
        ("e", "f", "m", "n", "k", "h", "a", "al", "b", "be", "c", "floor"),
        {
            "experts": ("granularity", "shared_share", "parameters", "active_parameters"),
            "size": ("parameters",),
            "tokens": ("tokens",),
            "active": ("active_parameters",),
            "floor": (),
        },
        comprehensive,
    ),
}
