"""What `meshwright prefill` answers: time to first token, how far to cut it, prefill servers for a generate server."""

from dataclasses import replace

from meshwright.costmodel.roofline.attention import critical_length
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.costmodel.serving import disaggregation as pools
from meshwright.costmodel.serving import server as serving
from meshwright.costmodel.serving.layout_answer import gather_bytes_per_s, met_ffn, prompt_ways
from meshwright.costmodel.serving.server import Served, Server
from meshwright.costmodel.serving.service import (
    Service,
    check_numbers,
    check_queries,
    check_service,
    check_whole,
    main_kind,
    money,
)
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.errors import WorkloadError, check_type, shown


def prefill(
    served: Served, server: Server, tokens: int, *, mfu: float = 1.0, cached: int = 0, title: str = "a model"
) -> Working:
    """Time to make the cache of a prompt, from numbers alone.

    Args:
        tokens: of the prompt, `cached` of them in a prefix cache already.
        mfu: share of peak that products reach.

    Errors: WorkloadError for a prompt that is cached whole, or an MFU outside (0, 1].
    """
    check_numbers(served, server)
    check_whole("prompt tokens", tokens)
    check_whole("cached prefix", cached, least=0)
    if cached >= tokens:
        raise WorkloadError(
            f"a cached prefix of {cached:,} leaves nothing of a prompt of {tokens:,} tokens; at most {tokens - 1:,}"
        )
    check_type("mfu", mfu, (int, float), "a number above 0 and at most 1", WorkloadError)
    if not 1e-9 < mfu <= 1:
        raise WorkloadError(f"mfu {shown(mfu)} is not above 0 and at most 1; write 0.4 for 40%")
    new = tokens - cached
    seconds = float(serving.prefill_s(served, server, new, mfu))
    math = float(serving.math_s(served, server, new))
    load = serving.load_s(served, server)
    critical = serving.critical_batch(served, server)
    given = {
        "n": Step(server.devices, "devices"),
        "chips": Step(server.chips, "chips"),
        "C": Step(server.flop_per_s, "FLOP/s", note="of one device"),
        "W": Step(server.hbm_bytes_per_s, "B/s", note="HBM of one device"),
        "P": Step(served.active_params, "params", note="met by one token"),
        "w": Step(served.weight_bytes, "B", note="per parameter"),
        "T": Step(tokens, "tokens", note="of the prompt"),
        "cached": Step(cached, "tokens", note="of them in a prefix cache"),
        "mfu": Step(mfu, "ratio"),
    }
    held = "P"
    if served.active_params != served.params:
        held = "P_held"
        given[held] = Step(served.params, "params", note="of all experts")
    steps = {
        "compute_fraction": Step(float(pools.prefilled_share(tokens, cached)), "ratio", "(T - cached) / T"),
        "flops": Step(math * server.all_flop_per_s, "FLOP", "2 P (T - cached)"),
        "t_load": Step(load, "s", f"{held} w / (n W)", "weights read once"),
        "t": Step(seconds, "s", "max(flops / (n C mfu), t_load)", "time to first token"),
        "t_floor": Step(
            float(serving.prefill_s(served, server, new)), "s", "max(flops / (n C), t_load)", "at mfu = 1"
        ),
        "critical_tokens": Step(
            critical,
            "tokens",
            "w C / (2 W)" if held == "P" else "w C P_held / (2 W P)",
            "products compute bound above",
        ),
        "compute_bound": Step(bool(math / mfu >= load)),
        "throughput_per_chip": Step(
            tokens / seconds / server.chips, "token/s", "T / (t chips)", "of prompts"
        ),
    }
    steps |= money(server, tokens / seconds)
    return Working(
        question=f"How long until the first token after {tokens:,} tokens: {title}?",
        given=given,
        steps=steps,
        binds=_binds(math / mfu, load, new, critical),
    )


def prefill_model(
    service: Service,
    *,
    mfu: float = 1.0,
    cached: int = 0,
    batch: int | None = None,
    decode_tokens: int | None = None,
    generate: Service | None = None,
) -> Working:
    """The same for a model, whose prompt is the service's context: with attention, and ways to cut it.

    Args:
        batch, decode_tokens: sequences of a generate server and tokens that each makes: how many prefill servers
            feed it, and evictions.
        generate: that server, if it is not the same one.

    Errors: as `prefill`; WorkloadError for a generate server of which only a part is given, or whose sequences do not
        hold the prompt.
    """
    check_service(service)
    if (batch is None) != (decode_tokens is None) or (generate is not None and batch is None):
        raise WorkloadError("a generate server needs both batch and decode_tokens; give both, or neither")
    served, server, tokens = service.served, service.server, service.context
    found = prefill(served, server, tokens, mfu=mfu, cached=cached, title=service.title)
    exact = serving.prompt_by_operator_s(
        service.model,
        server,
        tokens - cached,
        cached,
        mfu,
        *(ELEMENT_BYTES[d] for d in (service.weights, service.kv)),
    )
    kind = main_kind(service.model)
    group = kind.attention.heads / kind.attention.kv_heads
    given = {**found.given, "g": Step(group, "heads", note="of queries to one of keys")}
    alpha = critical_intensity(server.flop_per_s, server.hbm_bytes_per_s)
    steps = dict(found.steps) | {
        "t_exact": Step(exact, "s", note="by product, with causal attention"),
        "kv_bytes": Step(served.kv_bytes, "B", note="of the prompt"),
        "critical_length": Step(
            critical_length(alpha, group),
            "tokens",
            "(C / W) (g + 1) / g",
            "attention compute bound above",
        ),
    }
    if server.devices > 1:
        steps |= _cut(service)
        given["F"] = Step(
            met_ffn(kind), note="of the feed-forward part" if not kind.ffn.experts else "that a token meets"
        )
    if decode_tokens is not None and batch is not None:
        generate = service if generate is None else generate
        check_service(generate)
        check_whole("batch", batch)
        check_queries(generate.context, decode_tokens, tokens)
        given |= {
            "B": Step(batch, "sequences", note="of a generate server"),
            "G": Step(decode_tokens, "tokens", note="that each makes"),
        }
        steps |= _pools(generate, float(found.number("t")), batch, decode_tokens, tokens, server)
    notes = (
        "t is the book's: attention's FLOPs left out, nothing waits for the network",
        *(
            (f"{cached:,} cached tokens are read, not computed; new ones attend to them in t_exact",)
            if cached
            else ()
        ),
        *service.notes,
    )
    return replace(found, given=given, steps=steps, notes=notes)


def _binds(math_s: float, load_s: float, new: int, critical: float) -> str:
    if math_s >= load_s:
        return (
            f"compute binds, {math_s / load_s:,.3g} times as long as reading the weights; "
            f"{new:,} tokens are {new / critical:,.3g} times the critical {critical:,.0f}"
        )
    return (
        f"reading the weights binds, {load_s / math_s:,.3g} times as long as the FLOPs; more than "
        f"{critical:,.0f} tokens at once (now {new:,}) would be compute bound"
    )


def _cut(service: Service) -> dict[str, Step]:
    """Tensor parallel as far as crossings hide behind FLOPs, the rest over the sequence."""
    devices = service.server.devices
    limit, tensor = prompt_ways(service)
    return {
        "M_W": Step(gather_bytes_per_s(service.network), "B/s", note="a gather over all devices"),
        "ways_tensor_limit": Step(limit, "ways", "F M_W / C", "crossings as long as FLOPs"),
        "ways_tensor": Step(tensor, "ways", note="most that divide n and hide"),
        "ways_sequence": Step(devices // tensor, "ways", "n / ways_tensor", "the rest, over the prompt"),
    }


def _pools(
    generate: Service, prefill_s: float, batch: int, decode_tokens: int, prompt_tokens: int, prefiller: Server
) -> dict[str, Step]:
    served, server = generate.served, generate.server
    step = float(serving.step_s(served, server, batch))
    ratio = float(pools.prefill_per_generate(batch, step, decode_tokens, prefill_s))
    qps = float(pools.queries_per_s(batch, step, decode_tokens))
    fits = batch <= serving.most_sequences(served, server)
    where = f"of {generate.context:,} tokens on {generate.cluster.name}" + (
        "" if fits else ", which does not hold them"
    )
    return {
        "t_step": Step(step, "s", note=f"decode of {batch:,} sequences {where}"),
        "t_decode": Step(float(pools.decode_s(step, decode_tokens)), "s", "t_step G"),
        "prefill_per_generate": Step(ratio, "ratio", "B t / (t_step G)", "prefill servers for one of these"),
        "qps_total": Step(qps, "query/s", "B / (t_step G)", "of one generate server"),
        "qps_per_chip": Step(
            qps / (server.chips + ratio * prefiller.chips),
            "query/s",
            note="prefill servers counted",
        ),
        "tokens_per_step": Step(
            float(pools.evicted_tokens_per_step(batch, prompt_tokens, decode_tokens)),
            "tokens",
            "B (T + G) / G",
            "evicted from the cache",
        ),
    }
