"""The answer of `trained.train` as a page: the model, its run, what binds, and the proof."""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodel.counting.counts import rule_flops
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.run_time import DAY_S
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.units import human_count, human_seconds
from meshwright.optimizer.report.words import layout_option
from meshwright.search.output.config import shape_name
from meshwright.search.trained.compute_optimal import compute_optimal
from meshwright.search.trained.find import BEATEN, NO_LAYOUT, TOO_LARGE, TOO_SLOW, Chosen
from meshwright.search.trained.known import in_words
from meshwright.search.trained.tokens import Fixed
from meshwright.search.trained.train import Trained

_AXES = ("layers", "width", "heads", "kv_heads", "head_dim", "ffn_ratio", "experts", "top_k", "shared")
_KEEPS_OUT = {
    TOO_LARGE: "memory: {shape} would reach a loss of {loss:.4f}, but its state alone passes the memory of all devices",
    TOO_SLOW: "the deadline: {shape} would reach a loss of {loss:.4f}, but its compute alone takes {least} at least",
    NO_LAYOUT: "the deadline and the memory: {shape} would reach a loss of {loss:.4f}, but no layout of it fits and is in time",
}


# Name and note of the step that counts shapes kept out.
_WHY = {
    TOO_LARGE: ("too_large", "state alone passes all memory"),
    TOO_SLOW: ("too_slow", "by compute alone"),
    NO_LAYOUT: ("no_layout", "proven by layout search"),
    BEATEN: ("beaten", "loss no lower at the floor"),
}


def working(made: Trained) -> Working:
    """One screen."""
    given, fixed = made.given, isinstance(made.tokens, Fixed)
    job = given.training
    length = f"{human_count(made.tokens.wanted)} tokens" if isinstance(made.tokens, Fixed) else "free tokens"
    asked = {
        "cluster": Step(given.cluster.name, "", note=given.cluster.fabric_note.partition(":")[0]),
        "devices": Step(given.cluster.devices),
        "deadline": Step(made.deadline_s / DAY_S, "days"),
        "tokens": Step(job.total_tokens or "free", "tokens" if fixed else ""),
        "batch": Step(job.global_batch_tokens, "tokens"),
        "seq_len": Step(job.seq_len, "tokens"),
        "law": Step(made.law.name, "", note=made.law.source),
        "efficiency": Step(given.efficiency.name, "", note=given.efficiency.provenance),
    }
    table = tuple(_row(made, i) for i in range(len(made.outcome.ranked)))
    return Working(
        f"best model by {made.law.name} that {given.cluster.name} trains on {length} in {human_seconds(made.deadline_s)}",
        asked,
        _answer(made) | _by_law(made) | _proof(made),
        _binds(made),
        (layout_option(made.plan.layout), *made.priced.warnings, *made.plan.warnings),
        table,
    )


def _answer(made: Trained) -> dict[str, Step]:
    best, priced = made.best, made.plan.estimate
    tokens, params = made.trained_on(best), int(made.counts.params[best.row])
    heaviest = max(priced.stage_bytes)
    return {
        "best_shape": Step(shape_name(made.shapes, best.row)),
        "best_params": Step(params),
        "best_active_params": Step(int(made.counts.active_params[best.row])),
        "best_loss": Step(best.loss, made.law.unit),
        "in_law_box": Step(bool(made.priced.inside[0])),
        "tokens_trained": Step(tokens, "tokens", "steps * batch" if not isinstance(made.tokens, Fixed) else ""),
        "per_param": Step(tokens / params, "tokens", "tokens_trained / best_params"),
        **{name: Step(word) for name, word in _degrees(made.plan.layout).items()},
        **({"idle_devices": Step(made.plan.idle.devices)} if made.plan.idle.devices else {}),
        "t_step": Step(priced.step_s, "s"),
        "steps": Step(best.steps, "", "deadline / t_step, whole" if not isinstance(made.tokens, Fixed) else ""),
        "days": Step(made.days(best), "days", "steps * t_step"),
        "mfu": Step(priced.mfu, "ratio"),
        "device_memory": Step(heaviest, "B", note=f"{heaviest / priced.capacity_bytes:.0%} of the usable"),
    }  # fmt: skip


_MOST_CHARACTERS = 40
"""Of the policies of all stages, that the column of values still takes."""


def _degrees(layout: Layout) -> dict[str, Value]:
    """What is cut, and how, where a word says it; the whole layout stands in the notes."""
    told: dict[str, Value] = {"dp": layout.dp, "zero": layout.zero}
    told |= {
        name: getattr(layout, name)
        for name in ("cp", "tp", "pp", "vpp", "ep", "etp")
        if getattr(layout, name) > 1
    }
    policies = ";".join("/".join(words) for words in layout.policy_words)
    told["micro_batch"] = layout.micro_batch
    return told | {"recompute": policies} if len(policies) <= _MOST_CHARACTERS else told


def _by_law(made: Trained) -> dict[str, Step]:
    """What the law's closed form makes of the answer's compute."""
    best = made.best
    flops = rule_flops(float(made.counts.params[best.row]), made.trained_on(best))
    split = compute_optimal(made.law, flops)
    if split is None:
        return {}
    return {
        "compute": Step(flops, "FLOP", "6 * best_params * tokens_trained"),
        "law_params": Step(split.params, "", note="best split of that compute"),
        "law_tokens": Step(split.tokens, "tokens"),
        "law_loss": Step(split.loss, made.law.unit),
    }


def _proof(made: Trained) -> dict[str, Step]:
    proof = made.proof
    return {
        "shapes_listed": Step(proof.listed),
        **left_out(proof.removed),
        **{_WHY[why][0]: Step(n, note=_WHY[why][1]) for why, n in proof.kept_out.items() if n},
        "searched": Step(proof.searched, note="over their layouts"),
        "pairs": Step(proof.pairs, note="shapes x layouts"),
        "plans_priced": Step(proof.plans_priced, note="in full"),
        "share_priced": Step(proof.share_priced, "ratio", "plans_priced / pairs"),
        "rows_bounded": Step(proof.rows_bounded, note="layouts, a bound alone"),
        "status": Step("OPTIMAL", note="whatever the layout"),
    }


def left_out(removed: Mapping[str, int]) -> dict[str, Step]:
    """Shapes that are not in the space, by rule."""
    by_rule = ", ".join(f"{rule} {count:,}" for rule, count in removed.items() if count)
    return {"left_out": Step(sum(removed.values()), note=by_rule)} if by_rule else {}


def _binds(made: Trained) -> str:
    missed, best = made.outcome.missed, made.best
    spent, beyond = made.days(best) * DAY_S / made.deadline_s, _beyond(made)
    if not isinstance(made.tokens, Fixed):
        first = f"the deadline: {best.steps:,} whole steps take {spent:.2%} of it"
    elif missed is None:
        inside = f"--params: {beyond}" if beyond else "the grid: no shape of it has less loss"
        first = f"{inside}, and the run takes {spent:.1%} of the deadline"
    else:
        least = made.outcome.floor_s[missed.row] * best.steps
        first = _KEEPS_OUT[missed.why].format(
            shape=in_words(made.shapes, missed.row, made.counts.params[missed.row]),
            loss=missed.loss,
            least=human_seconds(float(least)),
        )
    edges = [
        f"{name} {_value(values[best.row])} ({'most' if values[best.row] == values.max() else 'least'})"
        for name in _AXES
        if (values := getattr(made.shapes, name)).min() < values.max()
        and values[best.row] in (values.min(), values.max())
    ]
    if beyond and not first.startswith("--params"):
        first += f"; --params binds too: {beyond}"
    return first + (f"; at the edge of the grid: {', '.join(edges)}" if edges else "")


def _beyond(made: Trained) -> str:
    """What the range of parameters keeps out; empty where nothing."""
    one = made.outside
    if one is None:
        return ""
    shape = in_words(one.shape, 0, one.params)
    return (
        f"{shape} lies outside and may reach a loss of {one.loss:.4f}, as far as state and compute alone tell"
    )


def _row(made: Trained, rank: int) -> dict[str, Value]:
    chosen: Chosen = made.outcome.ranked[rank]
    s, row = made.shapes, chosen.row
    return {
        "shape": shape_name(s, row),
        "params": int(made.counts.params[row]), "tokens": made.trained_on(chosen),
        "loss": chosen.loss, "step_s": chosen.fastest.step_s,
        "days": made.days(chosen), "in_box": bool(made.priced.inside[rank]),
    }  # fmt: skip


def _value(number: np.generic) -> Value:
    """A cell of a column as a plain number."""
    plain: Value = number.item()
    return plain
