"""Random small instances with the answer that exhaustive search gives, and what each of them exercises.

Seeds are dealt round-robin over regimes of memory and over wishes, so that any run of consecutive seeds has the
mix that the bar asks for: memory-binding, infeasible, and pipelines whose best stages are uneven.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import numpy as np
from exhaustive_oracle import Plan, PricedSpace, Wishes, price_everything
from mixed_oracle import mixed
from tiny_models import draw_model, looking_ahead, seeing, some_trained
from wishes import (
    ANY_WISHES,
    CHUNK_WISHES,
    HOST_WISHES,
    MEMORY_WISHES,
    NAME_WISHES,
    ONE_BY_ONE,
    PIPELINE_WISHES,
    SCHEDULE_WISHES,
    STATE_WISHES,
)

from meshwright.costmodel.layout import OFFLOADS
from meshwright.costmodel.setting import Setting, setting
from meshwright.costmodel.tensors import OTHER, TENSORS, named
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.network import SwitchTier, TorusAxis

CLUSTERS = (
    "h100:2x1", "h100:4x1", "h100:2x2", "h100:3x1", "h100:6x1", "h100:3x2", "h100:2x3", "h100:5x1",
    "h100:4x2", "h100:2x4", "h100:8x1", "v5p:2x2x1", "v5e:2x2", "v5e:2x4", "v6e:2x2", "v5p:2x2x2",
    "tpu7x:2x2x1", "v5e:2x2*2",
)  # fmt: skip
SMALL_CLUSTERS = ("h100:2x1", "h100:4x1", "h100:2x2", "h100:3x1", "v5p:2x2x1", "v5e:2x2")
LARGE_CLUSTERS = ("v5e:4x4", "h100:4x4", "h100:2x6", "v5p:2x2x4", "h100:8x2")
MODES = (
    ("default", "calibrated"), ("default", "none"), ("default", "full"), ("ideal", "full"), ("ideal", "none"),
)  # fmt: skip
TOPICS = ("memory", "memory", "pipeline", "memory", "pipeline", "pipeline", "chunks", "host")
VISIBLE = ("tp", "cp", "pp", "ep", "dp_shard", "zero", "micro_batch", "vpp", "schedule")


# From these seeds on questions are about where state lives, on hosts that hold some, and about schedules that split
# the backward pass; below, they take turns over TOPICS.
STATES, SCHEDULED = 1000, 10_000
# From this seed on all of these topics take turns, of models that train multi-token-prediction modules.
AHEAD = 20_000
# From this seed on of models with a vision tower, a third of them with modules too.
SEEING = 30_000
# From this seed on of models of which not all is trained, a third of them with a vision tower.
FROZEN = 40_000


@dataclass(frozen=True)
class Instance:
    """A question and its exhaustive answer.

    Attributes:
        answer: the best plan that fits, None if there is none. even: the best with equal stages.
        unlimited: the best plan were device memory endless.
        ranked_s: seconds of the best plan of each visible kind, ascending.
        plans: complete plans that were priced.
        uniform_s: seconds of the best plan in which all layers of a kind agree; inf if there is none.
        endless_hosts_s: seconds of the best plan were the memory of hosts endless; NaN where it was not cut.
    """

    seed: int
    setting: Setting
    constraints: str
    wishes: Wishes
    answer: Plan | None
    even: Plan | None
    unlimited: Plan | None
    ranked_s: tuple[float, ...]
    plans: int
    uniform_s: float = np.inf
    endless_hosts_s: float = np.nan

    @property
    def policies(self) -> list[tuple[tuple[int, int], ...]]:
        """(policy, layers) of each stage and kind of the answer."""
        if self.answer is None:
            return []
        mixes = [mix for stage in self.answer.mixes for mix in stage if mix]
        return mixes or [((int(code), 1),) for code in self.answer.row.policies[0]]

    @property
    def mixes_policies(self) -> bool:
        """The best plan has two policies for the layers of one kind, and is faster for it."""
        codes = {code for mix in self.policies for code, _ in mix}
        return (
            len(codes) > 1 and self.answer is not None and self.answer.seconds < self.uniform_s * (1 - 1e-9)
        )

    @property
    def hosts_bind(self) -> bool:
        """With endless memory of hosts a strictly faster plan would be best."""
        return self.answer is not None and self.endless_hosts_s < self.answer.seconds * (1 - 1e-9)

    @property
    def infeasible(self) -> bool:
        return self.answer is None

    @property
    def memory_binding(self) -> bool:
        """With endless memory a strictly faster plan would be best."""
        if self.answer is None:
            return self.unlimited is not None
        assert self.unlimited is not None
        return self.unlimited.seconds < self.answer.seconds * (1 - 1e-6)

    @property
    def uneven(self) -> bool:
        """A pipeline whose stages differ, strictly better than every plan with equal stages."""
        if self.answer is None or len(set(self.answer.lengths)) == 1:
            return False
        return self.even is None or self.answer.seconds < self.even.seconds * (1 - 1e-9)

    @property
    def uneven_by_choice(self) -> bool:
        """Uneven where the layers could have been shared as evenly as they go."""
        return (
            self.uneven
            and self.answer is not None
            and max(self.answer.lengths) - min(self.answer.lengths) > 1
        )

    def __str__(self) -> str:
        s = self.setting
        return (
            f"seed {self.seed}: {s.cluster.name}, {s.model.layers} layers {s.model.pattern}, "
            f"{s.training.sequences} x {s.training.seq_len}, {self.constraints!r}, {s.capacity_bytes} bytes"
        )


@lru_cache(maxsize=400)
def instance(seed: int) -> Instance:
    return build(seed)[0]


def priced(seed: int) -> tuple[PricedSpace, str, Wishes, Random]:
    """The question of a seed with all of its plans, before the device memory is drawn."""
    random = Random(seed)
    for _ in range(10):
        asked, text, wishes = _question(random, seed)
        space = price_everything(asked, wishes)
        if space.plans or seed % 16 == 2:  # some questions are left that no layout answers
            break
    return space, text, wishes, random


def build(seed: int) -> tuple[Instance, PricedSpace]:
    """The instance of a seed with all of its plans."""
    space, text, wishes, random = priced(seed)
    asked, capacity = space.setting, _capacity(random, seed, space)
    space = replace(space, setting=with_memory(asked, capacity, asked.cluster.host_memory_bytes))
    best = space.best(capacity)
    endless_hosts_s = np.nan
    if best is not None and best.host_bytes and random.random() < (0.3 if _topic(seed) == "states" else 0.7):
        # Prices do not depend on how much the host holds, so its memory may be chosen afterwards too.
        endless_hosts_s = _best_s(space, capacity)
        host = int(best.host_bytes * random.uniform(0.2, 0.999))
        space = replace(space, setting=with_memory(asked, capacity, host))
    assert space.setting.capacity_bytes == capacity
    return replace(answered(seed, space, text, wishes), endless_hosts_s=endless_hosts_s), space


def _best_s(space: PricedSpace, capacity: float) -> float:
    best = mixed(space, capacity).best if space.setting.framework.chooses else space.best(capacity)
    return np.inf if best is None else best.seconds


def answered(seed: int, space: PricedSpace, text: str, wishes: Wishes) -> Instance:
    """The question that a priced space answers, at the capacity of its setting."""
    capacity = space.setting.capacity_bytes
    best, even = space.best(capacity), space.best_even(capacity)
    ranked_s = _ranked(space, space.best_of_rows(capacity))
    uniform_s = np.inf if best is None else best.seconds
    unlimited = space.best(np.inf)
    if space.must_host.any():  # a single layer on the host is faster than all of them there
        unlimited = mixed(space, np.inf).best
    if space.setting.framework.chooses:
        found = mixed(space, capacity)
        best, even, ranked_s = found.best, found.even, found.ranked_s
    return Instance(
        seed, space.setting, text, wishes, answer=best, even=even, unlimited=unlimited, ranked_s=ranked_s,
        plans=space.plans, uniform_s=uniform_s,
    )  # fmt: skip


def with_memory(asked: Setting, device_bytes: int, host_bytes: int | None) -> Setting:
    """The same question on devices and hosts of other sizes."""
    chip = asked.cluster.chip
    memory = chip.memory.model_copy(
        update={"usable_per_device": chip.memory.capacity.model_copy(update={"text": f"{device_bytes} B"})}
    )
    chip = chip.model_copy(update={"memory": memory})
    return replace(asked, cluster=replace(asked.cluster, chip=chip, host_memory_bytes=host_bytes))


def _ranked(space: PricedSpace, best: np.ndarray) -> tuple[float, ...]:
    seen: dict[tuple[int, ...], float] = {}
    rows = space.rows
    for i in np.argsort(best, kind="stable"):
        if not np.isfinite(best[i]) or len(seen) >= 8:
            break
        key = tuple(int(getattr(rows, n)[i]) for n in VISIBLE)
        seen.setdefault(key, float(best[i]))
    return tuple(seen.values())


def _topic(seed: int) -> str:
    if seed >= AHEAD:
        return (*TOPICS, "schedules", "states")[seed % 10]
    return "schedules" if seed >= SCHEDULED else "states" if seed >= STATES else TOPICS[seed % 8]


def _question(random: Random, seed: int) -> tuple[Setting, str, Wishes]:
    """Everything but the device memory."""
    large = seed % 10 == 9 and seed < SCHEDULED
    topic = _topic(seed)
    mixture, two_kinds = random.random() < 0.4, random.random() < 0.4
    layers = random.choice((2, 3, 4) if large else (2, 3, 3, 4, 5, 5, 6, 7, 7))
    sequences = random.choice((2, 3, 4) if large else (1, 2, 3, 4, 6, 8, 12))
    if topic == "chunks":
        layers, sequences = random.choice((4, 6)), random.choice((2, 4, 6, 8))
    if topic == "memory":
        large, layers, sequences = False, random.choice((4, 5, 6, 8)), random.choice((4, 6, 8))
    if topic == "schedules":
        layers, sequences = random.choice((3, 4, 4, 5)), random.choice((4, 6, 8))
    model = draw_model(random, layers, mixture, two_kinds)
    ahead = AHEAD <= seed < FROZEN and (seed < SEEING or seed % 3 == 0)
    modules = Random(f"mtp {seed}").choice((1, 1, 2)) if ahead else 0
    model = looking_ahead(model, modules)
    vision = Random(f"tower {seed}")
    model = seeing(vision, model) if SEEING <= seed < FROZEN or (seed >= FROZEN and seed % 3 == 0) else model
    hosts = topic in ("host", "states") or (topic == "memory" and random.random() < 0.5)
    names = SMALL_CLUSTERS if topic == "memory" else LARGE_CLUSTERS if large else CLUSTERS
    cluster = draw_cluster(random, names, hosts, most=6 if topic == "schedules" else 16)
    seq_len = random.choice((1024, 2048, 4096, 768, 1030, 1542))
    training = Training(
        sequences * seq_len,
        seq_len,
        batch_tolerance=random.choice((0.0, 0.0, 0.0, 0.0, 0.2)),
        optimizer=random.choice(("adamw", "adamw8bit", "sgd")),
        moe_imbalance=random.choice((1.0, 1.3)),
        mtp=modules,
        images=0 if model.tower is None else vision.randint(1, min(3, seq_len // model.tower.tokens)),
        trainable=Random(f"trainable {seed}").choice(some_trained(model)) if seed >= FROZEN else "all",
    )
    efficiency, overlap = random.choice(MODES)
    asked = setting(
        model, cluster, training,
        efficiency=efficiency, overlap=overlap, streams=random.choice(("shared", "independent")),
        framework="jax" if topic == "memory" else random.choice(("jax", "jax", "megatron")),
    )  # fmt: skip
    tensors = Random(f"tensors {seed}")  # apart, so that the other draws are what they were without it
    chooses, offloads = _by_name(tensors) if asked.framework.chooses else ([], [])
    if len(model.kinds) > 1:  # every pair of policies of one kind meets every pair of the other
        chooses, offloads = chooses[-2:], offloads[:1]
    habits = replace(asked.framework, chooses=frozenset(chooses), offloads=frozenset(offloads))
    asked = replace(asked, framework=replace(habits, reserve_bytes=0, reserve_share=0.0))
    wanted = {
        "none": [], "pipeline": [random.choice(PIPELINE_WISHES)],
        "chunks": [random.choice(CHUNK_WISHES)], "host": [random.choice(HOST_WISHES)],
        "memory": [random.choice(MEMORY_WISHES[3 * (seed % 2) :]), ONE_BY_ONE, *([HOST_WISHES[0]] if hosts and seed % 3 == 1 else [])],
        # Not drawn for others, which would draw all else anew.
        "schedules": [random.choice(SCHEDULE_WISHES)] if topic == "schedules" else [],
        "states": [STATE_WISHES[seed % len(STATE_WISHES)]],
    }[topic]  # fmt: skip
    further = 2 if large else int(topic != "memory" and (two_kinds or random.random() < 0.35))
    wanted += random.sample(ANY_WISHES, further)
    if chooses and tensors.random() < 0.15:
        wanted.append(tensors.choice(NAME_WISHES))
    text = ", ".join(w.text for w in wanted)
    wishes = Wishes(
        candidate=lambda x: all(w.candidate(x) for w in wanted),
        policy=lambda p: all(w.policy(p) for w in wanted),
        offload=lambda o: all(w.offload(o) for w in wanted),
        asks_schedule="schedule" in text,
        asks_sp="sp in" in text,
    )
    return asked, text, wishes


def _by_name(random: Random) -> tuple[list[str], list[str]]:
    """Tensors that the framework saves or repeats by name, and those that it offloads by name: few, for brute force."""
    chooses = random.sample(TENSORS[1:], random.choice((1, 1, 2, 3)))
    # The intermediate results are most of what is saved.
    chooses = [*chooses, *(["unfused"] if random.random() < 0.5 and "unfused" not in chooses else [])]
    return chooses, random.sample(TENSORS[:-1], random.choice((0, 1, 2))) if chooses else []


def draw_cluster(random: Random, names: tuple[str, ...], host: bool, most: int) -> Cluster:
    """A real cluster with its network sped up or slowed down, rings closed, and its host as small as it may be."""
    cluster = parse_cluster(random.choice(names))
    while cluster.devices > most:
        cluster = parse_cluster(random.choice(names))
    levels = []
    for level in cluster.levels:
        gain = random.choice((0.02, 0.1, 0.5, 1.0, 1.0, 4.0))
        if isinstance(level, TorusAxis):
            wraps = level.wraps or random.random() < 0.3
            levels.append(replace(level, link_bytes_per_s=level.link_bytes_per_s * gain, wraps=wraps))
        else:
            assert isinstance(level, SwitchTier)
            speedup = random.choice((1.0, 1.0, 1.31))
            levels.append(replace(level, bytes_per_s=level.bytes_per_s * gain, all_reduce_speedup=speedup))
    memory = int(1e12) if host else random.choice((None, None, int(2e9), int(2e10), int(1e12)))
    update = None if memory is None else random.choice((None, 1e9))
    return replace(cluster, levels=tuple(levels), host_memory_bytes=memory, cpu_update_params_per_s=update)


def _capacity(random: Random, seed: int, space: PricedSpace) -> int:
    """Device memory: ample, between the leanest plan and the fastest one's need, or below the leanest."""
    fastest, leanest = space.best(np.inf), space.leanest()
    if fastest is None or leanest is None:
        return int(64e9)
    need = space.least_bytes_at(fastest.seconds * (1 + 1e-6))
    regime = (3 * seed + seed // 8) % 8  # every regime meets every topic
    if _topic(seed) == "states" and regime != 2:  # what state costs is seen where there is little room for it
        return int(
            leanest.device_bytes * 1.0001 + 0.999 * random.random() ** 3 * (need - leanest.device_bytes)
        )
    memory = _topic(seed) == "memory"
    if regime != 2 and (memory or (regime > 3 and space.setting.framework.chooses)):
        # The fastest row fits if some of its layers save less.
        own = space.least_bytes_of(fastest)
        return int(own * 1.0001 + random.uniform(0.05, 0.95) * (need - own))
    if regime in (0, 1):
        return int(need * random.uniform(1.01, 3))
    if regime == 2:
        return max(1, int(leanest.device_bytes * random.uniform(0.5, 0.99)))
    tight = random.choice((random.random(), random.random() ** 3))
    return int(leanest.device_bytes * 1.0001 + tight * 0.999 * (need - leanest.device_bytes))


def _away(asked: Instance, what: str) -> bool:
    """Whether the best plan keeps it on the host."""
    return asked.answer is not None and what in OFFLOADS[int(asked.answer.row.offload[0])]


def mix(instances: list[Instance]) -> dict[str, float]:
    """Shares of what the instances exercise."""
    count = len(instances)
    return {
        "memory-binding": sum(i.memory_binding and not i.infeasible for i in instances) / count,
        "infeasible": sum(i.infeasible for i in instances) / count,
        "pp>1 with an uneven optimum": sum(i.uneven for i in instances) / count,
        "uneven by more than one layer": sum(i.uneven_by_choice for i in instances) / count,
        "two layer kinds": sum(len(i.setting.model.kinds) > 1 for i in instances) / count,
        "mixture of experts": sum(any(k.ffn.experts for k in i.setting.model.kinds) for i in instances)
        / count,
        "torus": sum(isinstance(i.setting.cluster.levels[-1], TorusAxis) for i in instances) / count,
        "constraints": sum(bool(i.constraints) for i in instances) / count,
        "offload in the optimum": sum(i.answer is not None and i.answer.host_bytes > 0 for i in instances)
        / count,
        "hosts too small for the fastest": sum(i.hosts_bind for i in instances) / count,
        "vpp>1 in the optimum": sum(i.answer is not None and bool(i.answer.row.vpp[0] > 1) for i in instances)
        / count,
        "ep>1 in the optimum": sum(i.answer is not None and bool(i.answer.row.ep[0] > 1) for i in instances)
        / count,
        "gradients on the host in the optimum": sum(_away(i, "gradients") for i in instances) / count,
        "weights on the host in the optimum": sum(_away(i, "parameters") for i in instances) / count,
        "weights kept in the optimum": sum(
            i.answer is not None and not i.answer.row.reshard[0] for i in instances
        )
        / count,
        "recompute in the optimum": sum(any(c for m in i.policies for c, _ in m) for i in instances) / count,
        "recompute by tensor in the optimum": sum(
            any(named(c) == OTHER for m in i.policies for c, _ in m) for i in instances
        )
        / count,
        "two policies, and faster for it": sum(i.mixes_policies for i in instances) / count,
        "two policies of a kind on one stage": sum(
            i.mixes_policies and any(len(m) > 1 for m in i.policies) for i in instances
        )
        / count,
        "idle devices in the optimum": sum(
            i.answer is not None and int(i.answer.row.devices[0]) < i.setting.cluster.devices
            for i in instances
        )
        / count,
    }
