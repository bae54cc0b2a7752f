"""`train_time`: length and cost of a training run as a working."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from meshwright.costmodel.doors import (
    ClusterSource,
    ModelSource,
    check_positive,
    check_whole,
    cluster_of,
    model_of,
)
from meshwright.costmodel.flops import TRAIN, token_flops
from meshwright.costmodel.limits import run_time as run
from meshwright.costmodel.limits.run_time import DAY_S, YEAR_DAYS, Failures
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.working import Step, Value, Working, told
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import WorkloadError, check_type
from meshwright.hardware.numbers import make_plain
from meshwright.hardware.units import human_count

Steps = dict[str, Step]
LEAST_KEPT = 1e-3  # share of the time below which a run never ends


@dataclass(frozen=True)
class Speed:
    """How fast the run goes: a share of peak, or tokens per second of the whole cluster."""

    mfu: float | None = None
    tokens_per_s: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        make_plain(self)
        if (self.mfu is None) == (self.tokens_per_s is None):
            raise WorkloadError("a run's speed is either an mfu or tokens per second; give one of them")
        check_positive(WorkloadError, **{"tokens per second": self.tokens_per_s})
        if self.mfu is not None:
            run.check_mfu(self.mfu)


def train_time(
    model: ModelSource,
    cluster: ClusterSource,
    tokens: int,
    seq_len: int,
    speed: Speed,
    *,
    usd_per_chip_hour: float | None = None,
    watts: float | None = None,
    failures: Failures | None = None,
    deadline_s: float | None = None,
    dtype: str = "bf16",
) -> Working:
    """Days, chip-hours, money, energy and goodput of a run over `tokens`.

    Every chip of the cluster is paid for. Money and energy appear where a price and a power are sourced or given.

    Raises:
        WorkloadError: a number out of range. MissingFigureError: the chip has no peak for the dtype.
    """
    model, cluster = model_of(model), cluster_of(cluster)
    check_whole(WorkloadError, tokens=tokens, seq_len=seq_len)
    check_type("speed", speed, Speed, "a Speed(mfu=0.4) or a Speed(tokens_per_s=1e6)", WorkloadError)
    taken = "a Failures(mean_s, checkpoint_s), or None"
    check_type("failures", failures, (Failures, type(None)), taken, WorkloadError)
    check_positive(WorkloadError, usd_per_chip_hour=usd_per_chip_hour, watts=watts, deadline_s=deadline_s)
    check_type("dtype", dtype, str, "a name such as 'bf16'", WorkloadError)
    peak = cluster.chip.peak_flop_per_s(dtype) * cluster.chip.devices_per_chip
    flops = TRAIN * token_flops(model, seq_len) * tokens
    rule = run.step_flops(model.active_params, tokens)
    if speed.mfu is not None:
        mfu = speed.mfu
        seconds = run.train_s(flops, cluster.chips, peak, mfu)
    else:
        assert speed.tokens_per_s is not None
        seconds = tokens / speed.tokens_per_s
        mfu = flops / (seconds * cluster.chips * peak)
    steps = _time(flops, rule, cluster, peak, mfu, seconds)
    paid_s = seconds
    if failures is not None:
        steps |= _failures(failures, seconds)
        paid_s = seconds / failures.goodput(failures.daly_s)
    steps |= _cost(cluster, paid_s, tokens, peak, usd_per_chip_hour, watts, failures is not None)
    if deadline_s is not None:
        steps |= _deadline(flops, peak, mfu, deadline_s, seconds / paid_s)
    return Working(
        question=f"training {model.name} over {human_count(tokens)} tokens on {cluster.name}",
        given=_given(model, cluster, tokens, seq_len, peak, mfu, speed, dtype) | _times(failures, deadline_s),
        steps=steps,
        binds=_said(steps, cluster, paid_s),
        notes=tuple(_notes(cluster, speed, usd_per_chip_hour, watts, failures)),
    )


def _given(
    model: ModelSpec,
    cluster: Cluster,
    tokens: int,
    seq_len: int,
    peak: float,
    mfu: float,
    speed: Speed,
    dtype: str,
) -> Steps:
    found = cluster.chip.peak.get(dtype)  # type: ignore[call-overload]
    return {
        "P": Step(model.params, "params"),
        "P_active": Step(model.active_params, "params", note="met by a token"),
        "T": Step(tokens, "tokens", note=f"sequences of {seq_len:,}"),
        "N": Step(cluster.chips, "chips", note=cluster.name),
        "C": Step(peak, "FLOP/s", note=f"{dtype}, one chip" + (f" ({found.source})" if found else "")),
        "mfu": Step(mfu, "ratio", note=speed.source or "given"),
    }


def _times(failures: Failures | None, deadline_s: float | None) -> Steps:
    out = {}
    if failures is not None:
        out = {
            "mtbf": Step(failures.mean_s, "s", note="between failures of the whole job"),
            "checkpoint": Step(failures.checkpoint_s, "s", note="to write one"),
            "restart": Step(failures.restart_s, "s", note="from a failure to the next step"),
        }
    return out if deadline_s is None else out | {"deadline": Step(deadline_s, "s")}


def _time(flops: float, rule: float, cluster: Cluster, peak: float, mfu: float, seconds: float) -> Steps:
    of_rule = run.train_s(rule, cluster.chips, peak, min(mfu, 1.0)) / DAY_S
    alone = run.train_s(flops, 1, peak, 1.0) / DAY_S / YEAR_DAYS
    return {
        "flops": Step(flops, "FLOP", note="3 x forward, causal attention"),
        "flops_rule": Step(rule, "FLOP", "6 P_active T", "as the book counts"),
        "effective_rate": Step(cluster.chips * peak * mfu, "FLOP/s", "N C mfu"),
        "seconds": Step(seconds, "s", "flops / effective_rate"),
        "days": Step(seconds / DAY_S, "days", "seconds / 86400"),
        "days_rule": Step(of_rule, "days", "days x flops_rule / flops"),
        "years_on_one_chip": Step(alone, "years", "flops / C / (365 x 86400)", "at its peak"),
    }


def _failures(failures: Failures, seconds: float) -> Steps:
    best = failures.daly_s
    kept = failures.goodput(best)
    if kept < LEAST_KEPT:
        raise WorkloadError(
            f"with a failure every {failures.mean_s:g} s, checkpoints of {failures.checkpoint_s:g} s and restarts of "
            f"{failures.restart_s:g} s nothing is ever finished: less than {LEAST_KEPT:g} of the time is kept; write them faster (--checkpoint) or give the time between failures of the whole job (--mtbf)"
        )
    return {
        "checkpoint_every": Step(best, "s", note="of work; tau, Daly's optimum"),
        "checkpoint_young": Step(failures.young_s, "s", "sqrt(2 checkpoint mtbf)", "Young's, first order"),
        "goodput": Step(kept, "ratio", "tau / E(tau)", "share of time that is kept"),
        "days_with_failures": Step(seconds / kept / DAY_S, "days", "days / goodput"),
        "failures": Step(
            seconds / kept / failures.mean_s, "failures", "86400 days_with_failures / mtbf", "on average"
        ),
    }


def _cost(
    cluster: Cluster,
    paid_s: float,
    tokens: int,
    peak: float,
    usd_per_chip_hour: float | None,
    watts: float | None,
    failing: bool,
) -> Steps:
    hours = run.chip_hours(cluster.chips, paid_s)
    days = "days_with_failures" if failing else "days"
    steps = {"chip_hours": Step(hours, "chip-hours", f"24 N {days}", "idle chips too")}
    price = cluster.chip.price
    usd = usd_per_chip_hour if usd_per_chip_hour is not None else price and price.usd_per_chip_hour
    if usd:
        listed = usd_per_chip_hour is None and price is not None
        steps["usd_per_chip_hour"] = Step(usd, "USD", note=price.kind if listed and price else "given")
        steps["usd"] = Step(hours * usd, "USD", "chip_hours x usd_per_chip_hour")
        rate = tokens / paid_s / cluster.chips
        steps["usd_per_million_tokens"] = Step(
            run.usd_per_million_tokens(rate, usd), "USD", "1e6 usd / T", "of training"
        )
        steps["flops_per_usd"] = Step(
            run.flops_per_usd(peak, usd), "FLOP/USD", "3600 C / usd_per_chip_hour", "at peak"
        )
    power = cluster.chip.power
    drawn = watts if watts is not None else power and power.si
    if drawn:
        steps["power"] = Step(
            drawn, "W", note="one chip, given" if watts is not None or power is None else power.note
        )
        kwh = run.energy_j(cluster.chips, paid_s, drawn) / 3.6e6
        steps["energy"] = Step(kwh, "kWh", "chip_hours x power / 1000", "chips only, no hosts or cooling")
    return steps


def _deadline(flops: float, peak: float, mfu: float, deadline_s: float, kept: float) -> Steps:
    chips = run.chips_for(flops, deadline_s * kept, peak, mfu)
    rule = f"ceil(flops / (deadline C mfu{' goodput' if kept < 1 else ''}))"
    note = f"at the same mfu, for {deadline_s / DAY_S:.4g} days" + (" with failures" if kept < 1 else "")
    return {"chips_for_deadline": Step(ceil(chips), "chips", rule, note)}


def _said(steps: Steps, cluster: Cluster, paid_s: float) -> str:
    money = ""
    if "usd" in steps:
        usd = float(steps["usd"].value)
        money = f", {told(usd / run.MILLION)}M USD" if usd >= run.MILLION else f", {told(usd)} USD"
    on = f"{cluster.chips:,} chip{'s'[: cluster.chips > 1]}"
    hours = told(float(steps["chip_hours"].value))
    late = f"; for the deadline chips: {told(float(last.value))}" if (last := steps.get(DEADLINE)) else ""
    return f"{told(paid_s / DAY_S)} days on {on}, {hours} chip-hours{money}{late}"


def _notes(
    cluster: Cluster, speed: Speed, usd: float | None, watts: float | None, failures: Failures | None
) -> list[str]:
    notes = []
    price, power = cluster.chip.price, cluster.chip.power
    if usd is None and price is None:
        notes.append(f"no source prices {cluster.chip.name}, so no money; say it with --price 4.2")
    elif usd is None and price is not None:
        notes.append(f"price of {cluster.chip.name}: {price.provider}, {price.date}, {price.source}")
    if watts is None and power is None:
        notes.append(
            f"no source gives the power of {cluster.chip.name}, so no energy; say it with --power 700W"
        )
    elif watts is None and power is not None:
        notes.append(f"power of {cluster.chip.name}: {power.source}")
    if failures is not None:
        notes.append(
            "failures at random, one per mtbf M over the whole job; a stretch of work tau with its checkpoint delta takes "
            "E(tau) = M e^(restart/M) (e^((tau + delta)/M) - 1), work since the last checkpoint is done again"
        )
    if speed.mfu is not None:
        notes.append(_BY_RULE)
    return notes


_PLAIN = {"k chip-h": "chip-h", "M USD": "USD", "MWh": "kWh"}
DEADLINE = "chips_for_deadline"
_BY_RULE = "mfu counts the model's own FLOPs; a run quoted by 6 P T is days_rule"
_ALONE = "mfu counts the model's own FLOPs, not 6 P T; a cluster asked alone has days_rule too"
_COLUMNS = {
    "chips": ("N", 1.0),
    "in time": (DEADLINE, 1.0),
    "mfu": ("mfu", 1.0),
    "days": ("days", 1.0),
    "k chip-h": ("chip_hours", 1e3),
    "USD/h": ("usd_per_chip_hour", 1.0),
    "M USD": ("usd", 1e6),
    "USD/Mtoken": ("usd_per_million_tokens", 1.0),
    "PFLOP/USD": ("flops_per_usd", 1e15),
    "MWh": ("energy", 1e3),
}  # fmt: skip


def _columns(runs: Mapping[str, Working]) -> dict[str, tuple[str, float]]:
    """Of small runs in single units; the chips that meet a deadline where one was given."""
    small = all(one.number("chip_hours") < 1e4 for one in runs.values())
    out = {}
    for column, (step, scale) in _COLUMNS.items():
        if step == DEADLINE and not any(step in one.steps for one in runs.values()):
            continue
        plain = small and column in _PLAIN
        out[_PLAIN[column] if plain else column] = (step, 1.0 if plain else scale)
    return out


def compare_runs(runs: Mapping[str, Working]) -> Working:
    """The same run on several clusters, by name, and which is cheapest per FLOP and per token.

    Args:
        runs: of `train_time`, by the cluster's name.
    """
    columns = _columns(runs)
    table = []
    for name, one in runs.items():
        row: dict[str, Value] = {"cluster": name}
        for column, (step, scale) in columns.items():
            known = step in one.steps or step in one.given
            row[column] = _cell(one[step], scale) if known else "-"
        table.append(row)
    first = next(iter(runs.values()))
    said = [
        f"{what}: {min(priced, key=lambda r: sign * float(r[column]))['cluster']}"
        for what, column, sign in (
            ("cheapest per FLOP at peak", "PFLOP/USD", -1.0),
            ("cheapest per token", "USD/Mtoken", 1.0),
            ("soonest", "days", 1.0),
        )
        if (priced := [r for r in table if r[column] != "-"])
    ]
    notes = dict.fromkeys(_ALONE if n == _BY_RULE else n for one in runs.values() for n in one.notes)
    if "in time" in table[0]:
        days = first.number("deadline") / DAY_S
        said.append(f"the deadline of {told(days)} days is met by: {_in_time(table)}")
        notes["in time: chips that meet the deadline at the same mfu"] = None
    return Working(
        question=first.question.rsplit(" on ", 1)[0] + f" on {len(runs)} clusters",
        given={name: first.given[name] for name in ("P", "T", "deadline") if name in first.given},
        steps={},
        binds="; ".join(said),
        notes=tuple(notes),
        table=tuple(table),
    )


def _cell(value: Value, scale: float) -> Value:
    """Counts exactly, the rest at four digits."""
    return value if isinstance(value, int | str) and scale == 1 else float(f"{float(value) / scale:.4g}")


def _in_time(table: list[dict[str, Value]]) -> str:
    found = [str(row["cluster"]) for row in table if float(row["in time"]) <= float(row["chips"])]
    return ", ".join(found) or "none of them"
