"""What a printed formula gives from the values that are printed beside it; knows nothing of how they were computed."""

import math
import re

from meshwright.costmodel.working import Working

_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[A-Za-z_]\w*|[-+*/^(),])")
_FUNCTIONS = {"max": max, "min": min, "sqrt": math.sqrt, "floor": math.floor, "gcd": lambda a, b: math.gcd(int(a), int(b))}  # fmt: skip


def evaluated(working: Working) -> dict[str, tuple[float, float]]:
    """(printed, by the formula) of every step that has one, of symbols that are given or come earlier."""
    known = {name: step.value for name, step in working.given.items()}
    found = {}
    for name, step in working.steps.items():
        if step.formula:
            value = eval(_python(step.formula), {"__builtins__": {}}, {**_FUNCTIONS, **known})
            found[name] = (working.number(name), float(value))
        known[name] = step.value
    return found


def _python(formula: str) -> str:
    """Juxtaposed factors multiply; ^ is a power."""
    assert _TOKEN.sub("", formula).strip() == "", formula
    tokens = _TOKEN.findall(formula)
    out = []
    for before, token in zip(["", *tokens], tokens, strict=False):
        ends = before == ")" or re.fullmatch(r"\w+(?:\.\d+)?", before)
        starts = token == "(" or re.fullmatch(r"\w+(?:\.\d+)?", token)
        if ends and starts and not (token == "(" and before in _FUNCTIONS):
            out.append("*")
        out.append("**" if token == "^" else token)
    return " ".join(out)
