"""What a law of size and tokens says by itself: the best split of a compute between them.

    least A/N^a + B/D^b + floor with 6 N D = C:   N = G (C/6)^(b/(a+b)),  D = (C/6)^(a/(a+b)) / G,
    G = (a A / (b B))^(1/(a+b))

Source: arXiv 2203.15556, eq. 4. It knows no machine, and no sizes but whole numbers of parameters.
"""

from dataclasses import dataclass

from meshwright.costmodel.counting.counts import rule_flops
from meshwright.search.law import Law


@dataclass(frozen=True)
class ComputeOptimal:
    """Parameters and tokens that a law would train with a compute, and the loss that they reach."""

    params: float
    tokens: float
    loss: float


def compute_optimal(law: Law, flops: float) -> ComputeOptimal | None:
    """The best split of so many FLOPs by the rule of 6 N D; None where the law is of another form."""
    if law.form != "size_tokens":
        return None
    k = law.coefficients
    both, product = k["a"] + k["b"], flops / rule_flops(1.0)
    gain = (k["a"] * k["A"] / (k["b"] * k["B"])) ** (1.0 / both)
    params = gain * product ** (k["b"] / both)
    tokens = product ** (k["a"] / both) / gain
    return ComputeOptimal(params, tokens, k["A"] / params ** k["a"] + k["B"] / tokens ** k["b"] + k["floor"])
