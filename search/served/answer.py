"""The answer of `served.serve` as a page."""

from meshwright.costmodel.working import Step, Working
from meshwright.hardware.units import human_bytes, human_seconds
from meshwright.search.output.config import shape_name
from meshwright.search.served.find import MOST_BATCH, Served
from meshwright.search.served.serve import Serving
from meshwright.search.trained.answer import left_out
from meshwright.search.trained.known import Outside, in_words

_HOW = (
    "products, cache and weights are cut evenly over the ways of tensor parallelism, KV heads whole, and every crossing "
    "of the network is waited for; a prompt is prefilled alone on its replica, other sequences wait meanwhile"
)
_AT_ONCE = "at once on each replica"


def working(made: Serving) -> Working:
    """One screen."""
    request, limits = made.request, made.limits
    asked = {
        "cluster": Step(made.cluster.name, "", note=made.cluster.fabric_note),
        "devices": Step(made.cluster.devices),
        **made.board.given(),
        "prompt": Step(request.prompt, "tokens"),
        "output": Step(request.output, "tokens"),
        "weight_bytes": Step(request.weight_bytes, "B"),
        "kv_bytes": Step(request.kv_bytes, "B"),
        **({"tpot_most": Step(limits.tpot_s, "s")} if limits.tpot_s < float("inf") else {}),
        **({"ttft_most": Step(limits.ttft_s, "s")} if limits.ttft_s < float("inf") else {}),
        "law": Step(made.law.name, "", note=made.law.source),
    }
    return Working(
        f"best model by {made.law.name} that {made.cluster.name} serves, {request.prompt} tokens in and {request.output} out",
        asked,
        _answer(made) | _proof(made),
        _binds(made),
        (*_copies(made), *made.priced.warnings, *made.board.notes, _HOW),
    )  # fmt: skip


def _answer(made: Serving) -> dict[str, Step]:
    best, chips = made.best, made.cluster.chips
    part = best.choice.part
    return {
        "best_shape": Step(shape_name(made.shapes, best.row)),
        "best_params": Step(int(made.counts.params[best.row])),
        "best_active_params": Step(int(made.counts.active_params[best.row])),
        "best_loss": Step(float(made.priced.loss[best.row]), made.law.unit),
        "in_law_box": Step(bool(made.priced.inside[best.row])),
        "tp": Step(part.ways),
        "replicas": Step(part.replicas),
        "batch": Step(
            best.choice.batch,
            "sequences",
            note=_AT_ONCE if made.batch else f"{_AT_ONCE}, the most that keep the limits",
        ),
        "t_token": Step(best.token_s, "s"),
        "t_token_network": Step(best.token_network_s, "s", note="of t_token in collectives"),
        "t_prefill": Step(best.ttft_s, "s"),
        "t_prefill_network": Step(best.ttft_network_s, "s"),
        "device_memory": Step(best.device_bytes, "B"),
        "tokens_per_s_chip": Step(
            best.tokens_per_s / chips, "tokens/s", "batch * replicas / (t_token * chips)"
        ),
    }


def _proof(made: Serving) -> dict[str, Step]:
    return {
        "shapes_listed": Step(made.listed),
        **left_out(made.removed),
        "choices": Step(len(made.parts), note="of tp"),
        "looked_at": Step(made.looked_at, note="by loss, up to the answer"),
        "pairs_floored": Step(made.floors, note="shapes x choices x batches, without the network"),
        "pairs_priced": Step(made.exact, note="with it"),
        "status": Step("OPTIMAL", note="no shape with less loss keeps the limits"),
    }  # fmt: skip


def _binds(made: Serving) -> str:
    name, share = max(made.shares.items(), key=lambda item: item[1])
    own = f"the answer takes {share:.1%} of {name}{_batch(made)}"
    beyond = "" if made.outside is None else _beyond(made.outside)
    if made.missed is None:
        return f"{f'--params: {beyond}' if beyond else 'the grid: no shape of it has less loss'}; {own}"
    row, loss = made.missed.row, float(made.priced.loss[made.missed.row])
    over, times = max(made.missed_shares.items(), key=lambda item: item[1])
    first = (
        f"{over}: {in_words(made.shapes, row, made.counts.params[row])} would reach a loss of {loss:.4f}, but takes "
        f"{_amount(made.missed, over)}, {times:.3g} times what is allowed, even with tp={made.missed.choice.part.ways}"
    )
    return "; ".join((first, *((f"--params binds too: {beyond}",) if beyond else ()), own))


def _beyond(one: Outside) -> str:
    shape = in_words(one.shape, 0, one.params)
    return f"{shape} lies outside and has a loss of {one.loss:.4f} within the limits"


def _batch(made: Serving) -> str:
    """What keeps one sequence more out."""
    if made.batch is not None:
        return ""
    if made.one_more is None:
        return f"; batch {MOST_BATCH:,} is the most that is tried, more may make more tokens: ask for it with --batch"
    over = max(made.one_more_shares, key=lambda limit: made.one_more_shares[limit])
    return f"; {over} ends the batch: {made.one_more.choice.batch:,} sequences would take {_amount(made.one_more, over)}"


def _copies(made: Serving) -> tuple[str, ...]:
    heads, ways = int(made.shapes.kv_heads[made.best.row]), made.best.choice.part.ways
    if ways <= heads:
        return ()
    told = (
        f"tp={ways} passes the {heads} KV heads, so each is kept on {ways // heads} devices: cache and k/v weights are no "
        f"smaller on a device than with tp={heads}"
    )
    return (told,)


def _amount(served: Served, limit: str) -> str:
    if limit == "memory":
        return f"{human_bytes(served.device_bytes)} on a device"
    return human_seconds(served.token_s if limit == "tpot" else served.ttft_s)
