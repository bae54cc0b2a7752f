"""Recompute by tensor: the exact front against brute force, named policies as points of it, words, and what is refused."""

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from costmodel_cases import make_setting

from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import check_layout
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.policies import Costs, policies_of, tensor_bits
from meshwright.costmodel.policy_front import Node, codes_of, front
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.tensors import (
    CODES,
    HOST,
    POLICIES,
    TENSORS,
    away,
    code_of,
    simplest,
    word_of,
    words_of,
)
from meshwright.hardware.errors import InputError, LayoutError

FREE, AGAIN, SAVED, HOSTED = range(4)
FEED_FORWARD = ("norm2", "router", "up", "act", "expert_up", "expert_act", "expert_down")


def random_nodes(random: Random, count: int) -> tuple[Node, ...]:
    """A graph of tensors, parents first, with sizes that tie now and then."""
    nodes: list[Node] = []
    for name in TENSORS[:count]:
        parents = tuple(n.name for n in nodes if random.random() < 0.5)
        nodes.append(
            Node(
                name, float(random.randint(0, 6)), float(random.randint(0, 6)),
                tuple(random.choice((0, 0, 1)) for _ in range(4)), parents,
                needed=random.random() < 0.7, chosen=random.random() < 0.85, offloads=random.random() < 0.5,
            )
        )  # fmt: skip
    return tuple(nodes)


def brute(nodes: tuple[Node, ...], host: bool) -> tuple[set[tuple[float, ...]], set[tuple[float, ...]]]:
    """What the choices cost that no other beats: without and with anything on the host. Every status of every tensor;
    what is made again has its parents at hand, and nothing is kept that nobody asks for."""
    found: tuple[set[tuple[float, ...]], set[tuple[float, ...]]] = (set(), set())
    for statuses in product(range(4), repeat=len(nodes)):
        fate = dict(zip((n.name for n in nodes), statuses, strict=True))
        asked = {p for n in nodes if fate[n.name] == AGAIN for p in n.parents}
        if any(
            (fate[n.name] == FREE and n.needed)
            or (fate[n.name] == AGAIN and not n.chosen)
            or (fate[n.name] == HOSTED and not (host and n.offloads))
            or (fate[n.name] == AGAIN and any(fate[p] == FREE for p in n.parents))
            or (fate[n.name] != FREE and not n.needed and n.name not in asked)
            for n in nodes
        ):
            continue
        cost = np.zeros(7)
        for n in nodes:
            status = fate[n.name]
            cost[0] += n.size * (status == SAVED)
            cost[1] += n.size * (status == HOSTED)
            cost[2:] += np.array([n.seconds, *n.crosses]) * (status == AGAIN)
        found[HOSTED in statuses].add(tuple(cost.tolist()))
    return _unbeaten(found[0]), _unbeaten(found[1])


def _unbeaten(points: set[tuple[float, ...]]) -> set[tuple[float, ...]]:
    rows = np.array(sorted(points)).reshape(-1, 7)
    return {tuple(p) for p in rows.tolist() if not ((rows <= p).all(axis=1) & (rows < p).any(axis=1)).any()}


def costs_of_codes(nodes: tuple[Node, ...], codes: np.ndarray) -> set[tuple[float, ...]]:
    """What the codes say of every tensor, added up; a tensor that nothing asks for costs nothing."""
    out = set()
    for code in codes.tolist():
        cost, wanted = np.zeros(7), {n.name for n in nodes if n.needed}
        for n in reversed(nodes):
            at = TENSORS.index(n.name)
            if code >> HOST + at & 1:
                cost[1] += n.size
            elif not code >> at & 1:
                cost[0] += n.size
            elif n.name in wanted:
                cost[2:] += np.array([n.seconds, *n.crosses])
                wanted |= set(n.parents)
        out.add(tuple(cost.tolist()))
    return out


@pytest.mark.parametrize("seed", range(60))
def test_the_front_is_what_brute_force_leaves(seed: int) -> None:
    random = Random(seed)
    nodes = random_nodes(random, random.choice((3, 4, 5)))
    for host in (False, True):
        for found, expected in zip(front(nodes, host), brute(nodes, host), strict=True):
            assert costs_of_codes(nodes, found) == expected
            assert len(found) == len(expected), "one choice for each cost"


def test_what_is_saved_although_its_operator_runs_again_may_be_saved_on_the_host() -> None:
    """Without `unfused` the norm runs again; where a framework cannot drop its output, it can still move it."""
    world = ("llama-3-8b", "jax")
    habits = replace(
        setting_of(world).framework, chooses=frozenset({"unfused"}), offloads=frozenset({"norm2"})
    )
    plain, hosted = codes_of(habits, costs(world, 0, Layout()), 0, (True,) * 4, True)
    norm2, unfused = (TENSORS.index(name) for name in ("norm2", "unfused"))
    there = {(int(code) >> HOST + norm2 & 1, int(code) >> unfused & 1) for code in (*plain, *hosted)}
    assert there == {(0, 0), (0, 1), (1, 1)}


World = tuple[str, str]
WORLDS: tuple[World, ...] = (
    ("llama-3-8b", "jax"), ("llama-3-8b", "megatron"), ("mixtral-8x7b", "jax"), ("deepseek-v3", "jax"), ("falcon-7b", "jax"),
)  # fmt: skip


def setting_of(world: World) -> Setting:
    return make_setting(world[0], framework=world[1], seq_len=2048)


def kinds_of_worlds() -> list[tuple[World, int]]:
    return [(world, k) for world in WORLDS for k in range(len(setting_of(world).model.kinds))]


def costs(world: World, kind: int, layout: Layout) -> Costs:
    given = setting_of(world)
    return Shapes.of(given, Rows.of([layout], given)).kinds[kind].policies


@pytest.mark.parametrize(("world", "kind"), kinds_of_worlds())
def test_the_front_of_a_real_kind_is_what_brute_force_leaves(world: World, kind: int) -> None:
    """Without the host: 2^n choices, less those that save intermediate results but not their feed-forward part."""
    fw, priced = setting_of(world).framework, costs(world, kind, Layout())
    here = [n for i, n in enumerate(TENSORS) if priced.present >> i & 1]
    codes = []
    for gone in product((0, 1), repeat=len(here) - 1):
        fate = dict(zip(here[1:], gone, strict=True))
        if not (fate.get("unfused") == 0 and any(fate.get(n) for n in FEED_FORWARD)):
            codes.append(sum(1 << TENSORS.index(n) for n, drop in fate.items() if drop))
    if not fw.chooses:
        assert not len(codes_of(fw, priced, 0, (True,) * 4, False)[0])
        return
    found = codes_of(fw, priced, 0, (True,) * 4, False)[0]
    all_points, points = (_points(priced, np.array(c, np.int64)) for c in (codes, found))
    best = [
        p
        for p in all_points
        if not ((all_points <= p * (1 + 1e-12)).all(1) & (all_points < p * (1 - 1e-12)).any(1)).any()
    ]
    assert sorted(map(_rounded, points)) == sorted(set(map(_rounded, best)))


def _points(priced: Costs, codes: np.ndarray) -> np.ndarray:
    c = priced.priced(codes, np.zeros(len(codes), np.int64))
    return np.stack([c.device, c.repeated_s, c.scatters, c.passes, c.exchanges, c.expert_scatters], axis=1)


def _rounded(point: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{x:.9g}") for x in point)


# What each named policy repeats, as the cost model priced it before policies were chosen by tensor.
REPEATED = {
    "none": set(),
    "elementwise": {"norm1", "norm2", "act", "expert_act"},
    "attention": {"core"},
    "mlp": {"norm2", "router", "up", "act", "expert_up", "expert_act", "expert_down"},
    "full": set(TENSORS) - {"input", "unfused"},
}
CROSSED = {
    "none": (0, 0, 0),
    "elementwise": (0, 0, 0),
    "attention": (0, 1, 0),
    "mlp": (0, 0, 2),
    "full": (1, 1, 2),
}


@pytest.mark.parametrize(("world", "kind"), kinds_of_worlds())
@pytest.mark.parametrize("name", POLICIES)
def test_named_policies_are_points_of_the_graph(world: World, kind: int, name: str) -> None:
    """Bytes, seconds and collectives by the graph equal those of the sets above. In a parallel layer, whose attention
    output is summed into the layer's own, full recompute repeats neither that product nor its scatter."""
    priced = costs(world, kind, Layout())
    fw, spec = setting_of(world).framework, setting_of(world).model.kinds[kind]
    found = priced.priced(np.array([CODES[name]]), np.zeros(1, np.int64))
    here = [n for i, n in enumerate(TENSORS) if priced.present >> i & 1]
    policy = policies_of(fw)[POLICIES.index(name)]
    assert policy.repeated - {"down"} == REPEATED[name]
    seconds = sum(priced.operator_s[0, TENSORS.index(n)] for n in here if n in REPEATED[name])
    last = priced.last_s[0] if name == "full" else 0.0
    assert found.repeated_s[0] == pytest.approx(seconds + last, rel=1e-12)
    kept = sum(priced.tensor_bytes[0, TENSORS.index(n)] for n in here if n not in policy.dropped)
    assert found.device[0] == pytest.approx(kept, rel=1e-12)
    tp, cp, ep = CROSSED[name]
    expected = (tp * (not spec.parallel), cp, ep * bool(spec.ffn.experts))
    assert (found.scatters[0], found.passes[0], found.exchanges[0]) == expected


@pytest.mark.parametrize(("world", "kind"), kinds_of_worlds())
def test_words_and_codes_are_each_other_s_inverse(world: World, kind: int) -> None:
    given = setting_of(world)
    has = tensor_bits(given.framework, given.model.kinds[kind])
    random = Random(kind)
    for _ in range(200):
        code = random.getrandbits(len(TENSORS)) & has & ~1
        code |= (random.getrandbits(len(TENSORS)) & has & ~code) << HOST if random.random() < 0.5 else 0
        code = random.choice((simplest(code, has), away(CODES[random.choice(POLICIES)])))
        word = words_of([[[(code, 1)]]], [has])[0][0]
        whole = code >> HOST & has == has & ~code
        read = code_of(word, offloads=whole and ":" not in word)
        assert simplest(read, has) == code, word
        assert word_of(code, has) == word


@pytest.mark.parametrize(
    ("text", "words", "offload"),
    [
        ("recompute=save(core+up)", ("save(core+up)",), "none"),
        ("recompute=save(core+up)/full", ("save(core+up)", "full"), "none"),
        ("recompute=full:offload(input),offload=activations", ("full:offload(input)",), "activations"),
        ("offload=optimizer+activations,recompute=save(up):offload(up)/none", ("save(up):offload(up)", "none"), "optimizer+activations"),
    ],
)  # fmt: skip
def test_a_layout_reads_policies_by_tensor(text: str, words: tuple[str, ...], offload: str) -> None:
    layout = parse_layout(text)
    assert (layout.policies, layout.offload) == (words, offload)
    assert Layout.from_dict(layout.to_dict()) == layout


def test_what_lists_nothing_keeps_nothing_on_the_host_where_another_lists() -> None:
    two = parse_layout("offload=activations,recompute=save(up):offload(up)/none")
    assert [two.mix(0, k)[0][0] >> HOST > 0 for k in (0, 1)] == [True, False]
    assert parse_layout("offload=activations,recompute=full/none").mix(0, 1) == ((away(CODES["none"]), None),)
    assert all(Layout(offload=o).mix(0, 0)[0][0] >> HOST > 0 for o in OFFLOADS if "activations" in o)


MIX = "use none, elementwise, attention, mlp or full"


@pytest.mark.parametrize(
    ("world", "words", "message"),
    [
        (WORLDS[1], {"policies": ("save(core)",)}, f"recompute=save(core) chooses by tensor, which megatron cannot; {MIX}"),
        (WORLDS[0], {"policies": ("save(router)",)}, "recompute=save(router): no such layer has the tensor router; it has input, norm1, qkv, core, out, norm2, up, act, unfused"),
        (WORLDS[0], {"policies": ("save(unfused)",)}, "recompute=save(unfused): unfused is saved only with the whole feed-forward part on the device, and norm2 is not; leave unfused out of the list"),
        (WORLDS[0], {"policies": ("none:offload(act)",), "offload": "activations"}, "recompute=none:offload(act): jax does not offload act by name; it can input, qkv, core, out, up"),
    ],
)  # fmt: skip
def test_policies_that_cannot_be_are_refused(world: World, words: dict[str, Any], message: str) -> None:
    given = make_setting(world[0], framework=world[1], seq_len=2048, host=True)
    with pytest.raises(LayoutError) as caught:
        check_layout(given, with_stages(Layout(**words), given.model.layers, 1))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"policies": ("save(core):offload(up)",)}, "recompute='save(core):offload(up)' keeps up on the host and does not save it; save it, or leave it out of the list"),
        ({"policies": ("full:offload(input)",)}, "recompute='full:offload(input)' lists tensors for the host, but offload=none; use offload=activations, or drop the list"),
        ({"policies": ("save(qkv+)",)}, "recompute='save(qkv+)': a tensor is missing in 'qkv+'; write save(core+up)"),
        ({"policies": ("save(cor)",)}, "unknown tensor 'cor'; did you mean core or norm2 or norm1? Known: act, core, expert_act, expert_down, expert_up, input, latent, norm1, norm2, out, qkv, router, unfused, up (recompute='save(cor)')"),
    ],
)  # fmt: skip
def test_words_that_do_not_read_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout(**words)
    assert str(caught.value) == message
