"""The library's doors given what they do not take: one typed line that says what came and what is taken."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw

ASKED = mw.Training(64 * 1024, 4096)
MODEL = "give a built-in name, the path of a config.json or its folder, its content as a dict, or a ModelSpec"
QUESTION: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, f"model is None; {MODEL}"),
    ({"model": 5}, f"model is 5; {MODEL}"),
    ({"model": ["llama-3-8b"]}, f"model is ['llama-3-8b']; {MODEL}"),
    ({"cluster": 5}, "cluster is 5; give a string such as 'h100:8x64', or a Cluster"),
    ({"cluster": None}, "cluster is None; give a string such as 'h100:8x64', or a Cluster"),
    ({"training": "x"}, "training is 'x'; give a Training(global_batch_tokens=..., seq_len=...)"),
    (
        {"training": {"seq_len": 4096}},
        "training is {'seq_len': 4096}; give a Training(global_batch_tokens=..., seq_len=...)",
    ),
    (
        {"efficiency": 0.4},
        "efficiency is 0.4; give 'default', 'ideal', 'mfu=0.4' or the path of a YAML file",
    ),
    ({"overlap": None}, "overlap is None; give 'calibrated', 'full' or 'none'"),
    ({"comm_streams": []}, "comm_streams is []; give 'shared' or 'independent'"),
    ({"framework": 1}, "framework is 1; give 'jax' or 'megatron', or None"),
]
CONSTRAINTS = "give a string such as 'tp<=8, pp in {1,2,4}', or None"
NAME = "give the name of a file"
LISTS = "give a tuple with"


def given() -> Any:
    return mw.resolve("llama-3-8b", "h100:8x1", mw.Training(2**19, 8192))


def recommend(**changes: Any) -> Any:
    ask: dict[str, Any] = {"model": "llama-3-8b", "cluster": "h100:8x1", "training": ASKED}
    return mw.recommend(**(ask | changes))


DOORS: list[tuple[str, Callable[[], Any], str]] = [
    ("constraints", lambda: recommend(constraints=7), f"constraints is 7; {CONSTRAINTS}"),
    ("listed", lambda: recommend(constraints=["tp<=8"]), f"constraints is ['tp<=8']; {CONSTRAINTS}"),
    ("layout", lambda: mw.estimate(given(), 3), "layout is 3; give a Layout, or parse_layout('tp=8,pp=4')"),
    (
        "layout text",
        lambda: mw.estimate(given(), "tp=8"),
        "layout is 'tp=8'; give a Layout, or parse_layout('tp=8,pp=4')",
    ),
    (
        "setting",
        lambda: mw.estimate("llama-3-8b", mw.Layout()),
        "setting is 'llama-3-8b'; give what resolve(model, cluster, training) returns",
    ),
    ("parse_layout", lambda: mw.parse_layout(None), "layout is None; give a string such as 'tp=8,pp=4'"),
    ("parse_cluster", lambda: mw.parse_cluster(b"h100:8x1"), "cluster is b'h100:8x1'; give a string such as"),
    (
        "host_memory",
        lambda: mw.parse_cluster("h100:8x1", host_memory=2e12),
        "host_memory is 2000000000000.0; give a size such as '2 TB', or None",
    ),
    (
        "cpu_update",
        lambda: mw.parse_cluster("h100:8x1", cpu_update=1e9),
        "cpu_update is 1000000000.0; give a rate such as '3 Gparam/s', or None",
    ),
    (
        "load_model",
        lambda: mw.load_model(None),
        "model is None; give a built-in name, the path of a config.json or its folder, or its content as a dict",
    ),
    ("load_plan", lambda: mw.load_plan(None), f"path is None; {NAME}"),
    ("load_priced", lambda: mw.load_priced(3), f"path is 3; {NAME}"),
    ("save_plan", lambda: mw.save_plan(3, "plan.yaml"), "plan is 3; give a Plan, what `recommend` returns"),
    (
        "Plan.from_dict",
        lambda: mw.Plan.from_dict([]),
        "a plan is a mapping, not list; read one with load_plan",
    ),
    ("Layout.from_dict", lambda: mw.Layout.from_dict(3), "layout is 3; give a mapping as `to_dict` makes it"),
    ("tp", lambda: mw.Layout(tp="8"), "tp='8' is not a degree; give a whole number of 1 or more"),
    (
        "huge tp",
        lambda: mw.Layout(tp=10**5000),
        "tp=a value too large to print is not a degree; give a whole",
    ),
    ("zero", lambda: mw.Layout(zero=True), "zero=True is not one of 0, 1, 2, 3"),
    ("sp", lambda: mw.Layout(sp="yes"), "sp='yes' is not one of False, True"),
    ("policies", lambda: mw.Layout(policies="full"), f"policies is 'full'; {LISTS} one policy, such as"),
    (
        "no policy",
        lambda: mw.Layout(policies=()),
        "policies is (); give a tuple with one policy, such as ('full',), or one per layer kind",
    ),
    (
        "layers",
        lambda: mw.Layout(layers_per_stage=5),
        f"layers_per_stage is 5; {LISTS} the layers of each stage",
    ),
    (
        "words for layers",
        lambda: mw.Layout(layers_per_stage=("many",)),
        "an entry of layers_per_stage is 'many'; give a whole number of layers",
    ),
    ("sequences", lambda: mw.Layout(sequences="all"), "sequences is 'all'; give a whole number of sequences"),
    ("placement", lambda: mw.Layout(placement=3), "placement is 3; give per network level a tuple of pairs"),
    (
        "a level",
        lambda: mw.Layout(placement=(("tp", 8),)),
        "an entry of placement is ('tp', 8); give a tuple of pairs such as (('tp', 8),)",
    ),
    ("batch", lambda: mw.Training(None, 4096), "global batch in tokens must be a whole number, not None"),
    (
        "huge batch",
        lambda: mw.Training(10**5000, 4096),
        "global batch in tokens is a value too large to print; give a number from 1 to 1099511627776",
    ),
    (
        "tolerance",
        lambda: mw.Training(4096, 4096, batch_tolerance="5%"),
        "batch tolerance is '5%'; give a number from 0 to 0.5 (0% to 50%)",
    ),
    (
        "imbalance",
        lambda: mw.Training(4096, 4096, moe_imbalance=None),
        "moe_imbalance is None; give a number from 1 to 100 (fullest over mean)",
    ),
    (
        "optimizer",
        lambda: mw.Training(4096, 4096, optimizer=[]),
        "unknown optimizer []; known: adamw, adamw8bit, sgd",
    ),
]


@pytest.mark.parametrize(("changes", "text"), QUESTION, ids=[f"{c}"[:40] for c, _ in QUESTION])
@pytest.mark.parametrize("door", [recommend, mw.resolve])
def test_a_question_of_wrong_types_is_one_typed_line(
    door: Callable[..., Any], changes: dict[str, Any], text: str
) -> None:
    ask: dict[str, Any] = {"model": "llama-3-8b", "cluster": "h100:8x1", "training": ASKED}
    with pytest.raises(mw.InputError) as caught:
        door(**(ask | changes))
    assert str(caught.value) == text


@pytest.mark.parametrize(("door", "text"), [d[1:] for d in DOORS], ids=[d[0] for d in DOORS])
def test_every_door_names_what_came_and_what_is_taken(door: Callable[[], Any], text: str) -> None:
    with pytest.raises(mw.InputError) as caught:
        door()
    assert str(caught.value).startswith(text) and "\n" not in str(caught.value)


def test_long_values_are_shortened() -> None:
    with pytest.raises(mw.InputError) as caught:
        mw.parse_cluster(["h100:8x1"] * 10_000)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (lambda: recommend(options=3), "options is 3; give a SolveOptions, or None"),
        (lambda: mw.SolveOptions(runner_ups=-1), "runner_ups=-1 is not a whole number of at least 0"),
        (lambda: mw.SolveOptions(refinements="x"), "refinements='x' is not a whole number of at least 1"),
        (lambda: mw.SolveOptions(work_limit=float("inf")), "work_limit=inf is not a number above 0"),
    ],
)
def test_effort_of_the_wrong_kind(options: Callable[[], Any], told: str) -> None:
    with pytest.raises(mw.InputError, match=re.escape(told)):
        options()
