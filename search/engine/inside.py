"""Only shapes inside the box that a law was fitted on: options of either side that leave it go, and sizes become rules."""

from dataclasses import replace

import numpy as np

from meshwright.hardware.errors import InputError
from meshwright.search.engine.parts import LAW_SIZES
from meshwright.search.engine.pieces import OF_ATTENTION, OF_FFN, SIZES
from meshwright.search.engine.question import Question, Rule
from meshwright.search.grid import Mask, Side, Sides
from meshwright.search.shape import Ints

INSIDE = "inside the law's box"


def inside_sides(question: Question, sides: Sides, layers: Ints) -> tuple[Sides, Mask]:
    """The sides without what leaves the box, and which numbers of layers stay.

    Errors: InputError where a range of the box is not known, or no shape can be inside for its tokens.
    """
    law = question.law
    unknown = [name for name, allowed in law.box.items() if not allowed.known]
    if unknown:
        raise InputError(
            f"no shape is known to be inside law {law.name}: its range of {unknown[0]} is unknown; leave out inside_only"
        )
    tokens = question.tokens if law.tokens is None else law.tokens
    if "tokens" in law.box and tokens is not None and not law.box["tokens"].holds(np.array(float(tokens))):
        raise InputError(
            f"no shape is inside law {law.name} at {tokens:g} tokens: it was fitted from {law.box['tokens']}; give tokens there"
        )
    if question.tokens is not None and law.tokens is not None and question.tokens != law.tokens:
        raise InputError(
            f"no shape is inside law {law.name} at {question.tokens:g} tokens: it was fitted at {law.tokens:g}; give those"
        )
    attention = _kept(question, sides.attention, {*OF_ATTENTION, "width"})
    ffn = _kept(question, sides.ffn, OF_FFN)
    stays = (
        law.box["layers"].holds(layers.astype(float)) if "layers" in law.box else np.full(len(layers), True)
    )
    return replace(sides, attention=attention, ffn=ffn), stays


def inside_rules(question: Question) -> tuple[Rule, ...]:
    """Ranges of sizes, as the law counts them."""
    out = []
    for name, resource in zip(SIZES, LAW_SIZES, strict=True):
        allowed = question.law.box.get(name)
        if allowed is None:
            continue
        if allowed.low is None or allowed.high is None:
            raise InputError(
                f"law {question.law.name} was fitted at single values of {name}; leave out inside_only"
            )
        out += [Rule(INSIDE, resource, 1, allowed.high), Rule(INSIDE, resource, -1, allowed.low)]
    return tuple(out)


def _kept(question: Question, side: Side, names: set[str]) -> Side:
    columns, mask = question.law.columns(side.shapes), np.full(len(side), True)
    for name in names & set(question.law.box):
        mask &= question.law.box[name].holds(np.asarray(getattr(columns, name), float))
    return side.kept(mask)
