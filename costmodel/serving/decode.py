"""What `meshwright decode` answers: one decode step, what fits and what it costs, with the working."""

from dataclasses import replace

from meshwright.costmodel.counting.kvcache import cache_bytes
from meshwright.costmodel.roofline import intensity as roofline
from meshwright.costmodel.serving import disaggregation as pools
from meshwright.costmodel.serving import server as serving
from meshwright.costmodel.serving.layout import network_s
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
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.errors import check_type
from meshwright.hardware.units import human_bytes


def decode(
    served: Served, server: Server, batch: int, *, chip: Chip | None = None, title: str = "a model"
) -> Working:
    """One step of `batch` sequences from numbers alone.

    Args:
        chip: whose slices are looked through for the smallest that holds it all.
        title: the model and the machine, for the question.

    Errors: WorkloadError for a batch below 1; InputError for a number that is not above zero.
    """
    check_numbers(served, server)
    check_type("chip", chip, (Chip, type(None)), "a Chip, or None")
    check_whole("batch", batch)
    return Working(
        question=f"What does a decode step of {batch:,} sequences take: {title}?",
        given=_given(served, server, batch),
        steps=_memory(served, server, batch, chip) | _times(served, server, batch),
        binds=_binds(served, server, batch),
    )


def decode_model(
    service: Service, batch: int, *, decode_tokens: int | None = None, prompt_tokens: int | None = None
) -> Working:
    """The same for a model, with the network and what the book's formula leaves out.

    Args:
        decode_tokens: tokens that a query generates, for queries per second.
        prompt_tokens: of its prompt, for evictions.

    Errors: WorkloadError for a number below 1, a prompt longer than the context, or one without `decode_tokens`.
    """
    check_service(service)
    check_queries(service.context, decode_tokens, prompt_tokens)
    served, server, model = service.served, service.server, service.model
    found = decode(served, server, batch, chip=service.cluster.chip, title=service.title)
    context, kv = service.context, ELEMENT_BYTES[service.kv]
    exact = service.exact_s(batch)
    attention = float(serving.attention_math_s(model, server, batch, context))
    network = network_s(model, service.network, batch)
    free = serving.free_bytes(served, server)
    longest = serving.largest(lambda tokens: batch * cache_bytes(model, tokens, kv) <= free)
    steps = dict(found.steps) | {
        "kv_bytes_per_token": Step(cache_bytes(model, 1, kv), "B", note="of one sequence"),
        "max_context": Step(longest, "tokens", note="of each in the batch"),
        "t_attention_math": Step(attention, "s", note="attention, beside t_kv"),
        "t_exact": Step(exact, "s", note="by product, with attention"),
        "t_network": Step(network, "s", note="of all collectives"),
        "t_upper": Step(exact + network, "s", "t_exact + t_network", "nothing overlapped"),
    }
    ffn = main_kind(model).ffn
    if ffn.experts:
        dense = roofline.critical_batch(served.weight_bytes, server.flop_per_s, server.hbm_bytes_per_s)
        steps["critical_batch_experts"] = Step(
            dense * ffn.experts / ffn.top_k, "sequences", "w C E / (2 W k)", "of experts alone"
        )
    if decode_tokens is not None:
        steps |= _queries(served, server, batch, decode_tokens, prompt_tokens)
    given = {**found.given, "S": Step(context, "tokens", note="context: of a sequence, in the cache")}
    if ffn.experts:
        given |= {
            "E": Step(ffn.experts, "experts"),
            "k": Step(ffn.top_k, "experts", note="that a token meets"),
        }
    if decode_tokens is not None:
        given["G"] = Step(decode_tokens, "tokens", note="made per query")
    if prompt_tokens is not None:
        given["T"] = Step(prompt_tokens, "tokens", note="of the prompt of a query")
    return replace(found, given=given, steps=steps, notes=_notes(service, attention, batch))


def _given(served: Served, server: Server, batch: int) -> dict[str, Step]:
    given = {
        "n": Step(server.devices, "devices"),
        "chips": Step(server.chips, "chips"),
        "C": Step(server.flop_per_s, "FLOP/s", note="of one device"),
        "W": Step(server.hbm_bytes_per_s, "B/s", note="HBM of one device"),
        "memory": Step(server.memory_bytes, "B", note="of one device"),
        "P": Step(served.params, "params"),
        "w": Step(served.weight_bytes, "B", note="per parameter"),
        "B": Step(batch, "sequences"),
    }
    if served.active_params != served.params:
        given["active"] = Step(served.active_params, "params", note="met by one token")
    return given


def _memory(served: Served, server: Server, batch: int, chip: Chip | None) -> dict[str, Step]:
    cached = batch * served.kv_bytes
    total = served.param_bytes + cached
    free = serving.free_bytes(served, server)
    steps = {
        "param_bytes": Step(
            served.param_bytes, "B", "P w", f"{human_bytes(served.param_bytes / server.devices)} per device"
        ),
        "kv_per_sequence": Step(served.kv_bytes, "B"),
        "kv_bytes": Step(cached, "B", "B kv_per_sequence"),
        "total_bytes": Step(total, "B", "param_bytes + kv_bytes"),
        "bytes_per_device": Step(
            total / server.devices, "B", "total_bytes / n", f"of {human_bytes(server.memory_bytes)}"
        ),
        "fits": Step(total <= server.all_memory_bytes, note="weights and caches alone"),
        "free_hbm": Step(
            max(free, 0.0),
            "B",
            "max(n memory - param_bytes, 0)",
            f"{human_bytes(free / server.devices)} per device" if free > 0 else "the weights leave none",
        ),
    }
    if total > server.all_memory_bytes:
        short = total - server.all_memory_bytes
        steps["missing_bytes"] = Step(
            short, "B", "total_bytes - n memory", f"{human_bytes(short / server.devices)} per device"
        )
    steps["min_chips"] = Step(serving.chips_for(total, server), "chips", "total_bytes chips / (n memory)")
    if served.kv_bytes:
        steps["max_batch"] = Step(
            serving.most_sequences(served, server), "sequences", "floor(free_hbm / kv_per_sequence)"
        )
    if chip is not None:
        smallest = serving.smallest_slice(chip, serving.chips_for(total, server))
        steps["slice"] = Step(smallest or "none listed", note="smallest that holds both")
    return steps


def _times(served: Served, server: Server, batch: int) -> dict[str, Step]:
    rate = float(serving.throughput(served, server, batch))
    met = "P" if served.active_params == served.params else "active"
    critical = "w C / (2 W)" if met == "P" else "w C P / (2 W active)"
    steps = {
        "t_load": Step(serving.load_s(served, server), "s", "P w / (n W)", "weights read once"),
        "t_math": Step(float(serving.math_s(served, server, batch)), "s", f"2 B {met} / (n C)"),
        "t_mlp": Step(float(serving.weights_s(served, server, batch)), "s", "max(t_load, t_math)"),
        "t_kv": Step(float(serving.kv_s(served, server, batch)), "s", "B kv_per_sequence / (n W)"),
        "t_step": Step(float(serving.step_s(served, server, batch)), "s", "t_kv + t_mlp"),
        "t_floor": Step(
            float(serving.step_s(served, server, 1)),
            "s",
            "t_kv / B + max(t_load, t_math / B)",
            "t_step of one sequence",
        ),
        "t_full": Step(serving.full_memory_s(server), "s", "memory / W", "step of a full memory"),
        "throughput": Step(rate, "token/s", "B / t_step"),
        "throughput_per_chip": Step(rate / server.chips, "token/s", "throughput / chips"),
        "critical_batch": Step(
            serving.critical_batch(served, server),
            "sequences",
            critical,
            "where t_math is t_load",
        ),
    }
    return steps | money(server, rate)


def _queries(
    served: Served, server: Server, batch: int, decode_tokens: int, prompt_tokens: int | None
) -> dict[str, Step]:
    step = float(serving.step_s(served, server, batch))
    qps = float(pools.queries_per_s(batch, step, decode_tokens))
    steps = {
        "t_decode": Step(float(pools.decode_s(step, decode_tokens)), "s", "t_step G"),
        "qps_total": Step(qps, "query/s", "B / (t_step G)"),
        "qps_per_chip": Step(qps / server.chips, "query/s", "qps_total / chips"),
    }
    if prompt_tokens is not None:
        steps |= {
            "sequences_per_step": Step(
                float(pools.finished_per_step(batch, decode_tokens)), "sequences", "B / G"
            ),
            "tokens_per_step": Step(
                float(pools.evicted_tokens_per_step(batch, prompt_tokens, decode_tokens)),
                "tokens",
                "B (T + G) / G",
                "evicted from the cache",
            ),
        }
    return steps


def _binds(served: Served, server: Server, batch: int) -> str:
    read, math = serving.load_s(served, server), float(serving.math_s(served, server, batch))
    step, cache = float(serving.step_s(served, server, batch)), float(serving.kv_s(served, server, batch))
    shares = {
        "reading the cache": cache / step,
        "reading the weights" if read >= math else "FLOPs of the products": max(read, math) / step,
    }
    parts = sorted(shares.items(), key=lambda item: -item[1])
    text = f"{parts[0][0]} takes {parts[0][1]:.0%} of the step and {parts[1][0]} {parts[1][1]:.0%}"
    critical = serving.critical_batch(served, server)
    side = f"{batch / critical:.3g} times" if batch > critical else f"{batch / critical:.2g} of"
    text += f"; the batch is {side} the critical {critical:,.0f}"
    short = served.param_bytes + batch * served.kv_bytes - server.all_memory_bytes
    if short > 0:
        most = serving.most_sequences(served, server) if served.kv_bytes else 0
        return f"does not fit: {human_bytes(short)} short, {most:,} sequences would fit. If it did: {text}"
    return text


def _notes(service: Service, attention_s: float, batch: int) -> tuple[str, ...]:
    notes = ["t_step is the book's: everything cut evenly over all devices, network and activations left out"]
    model = service.model
    if attention_s > float(serving.kv_s(service.served, service.server, batch)):
        notes.append(
            "attention's FLOPs take longer than reading its cache, so t_step is too short: use t_exact"
        )
    if model.active_params != model.params:
        notes.append(
            f"all experts are read, so compute binds at {model.params / model.active_params:.3g} times a dense model's "
            "batch; t_exact reads those met"
        )
    return (*notes, *service.notes)
