"""Every rule of every launcher: a layout that breaks it is refused by its name and source, a neighbour is not."""

from dataclasses import fields, replace

import numpy as np
import pytest
from costmodel_cases import make_setting
from independent_launchers import RUNS, refused

from meshwright.costmodel.estimate import complete
from meshwright.costmodel.layout import OFFLOADS, Layout, parse_layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.optimizer.launchers.catalogue import LAUNCHERS, agreed
from meshwright.optimizer.launchers.check import broken_rules, runnable
from meshwright.optimizer.question import price, resolve

LLAMA = make_setting("llama-3-8b", "h100:8x4", 128, 8192, host=True)
MIXTRAL = make_setting("mixtral-8x7b", "h100:8x4", 128, 4096, host=True)
GLM = make_setting("glm-4.5-air", "h100:8x4", 128, 4096)  # one dense kind, one of experts
TPU = make_setting("llama-3-8b", "v5p:2x4x4", 128, 8192, host=True)
GPT = make_setting("gpt2-xl", "h100:8x4", 128, 1024)

# Launcher, rule, question, a layout that breaks it, and a near one that does not.
CASES = [
    ("megatron", "recompute it has a setting for", LLAMA, "tp=4,dp=8,recompute=elementwise", "tp=4,dp=8,recompute=full"),
    ("megatron", "recompute modules act on all layers", GLM, "dp=32,zero=1,ep=32,recompute=full/none", "dp=32,zero=1,ep=32,recompute=mlp/none"),
    ("megatron", "recompute modules act on all layers", GLM, "dp=32,zero=1,ep=32,recompute=attention/none", "dp=32,zero=1,ep=32,recompute=attention"),
    ("megatron", "activations that it can offload", LLAMA, "tp=4,dp=8,recompute=none,offload=activations", "tp=4,dp=8,recompute=mlp,offload=activations"),
    ("megatron", "optimizer offload without FSDP", LLAMA, "dp=32,zero=2,offload=optimizer", "dp=32,zero=1,offload=optimizer"),
    ("megatron", "schedule it runs", LLAMA, "pp=4,dp=8,schedule=gpipe", "pp=4,dp=8,schedule=1f1b"),
    ("megatron", "ep with tp needs sp", MIXTRAL, "tp=2,dp=16,ep=8,sp=false", "tp=2,dp=16,ep=8,sp=true"),
    ("maxtext", "recompute it has a setting for", TPU, "dp=32,zero=3,recompute=attention", "dp=32,zero=3,recompute=mlp"),
    ("maxtext", "one recompute policy for all layers", GLM, "dp=32,zero=3,ep=32,recompute=full/none", "dp=32,zero=3,ep=32,recompute=full"),
    ("maxtext", "offload it has a setting for", TPU, "dp=32,zero=3,offload=optimizer", "dp=32,zero=3,recompute=full,offload=activations"),
    ("maxtext", "activations that it can offload", TPU, "dp=32,zero=3,offload=activations", "dp=32,zero=3,recompute=elementwise,offload=activations"),
    ("maxtext", "stages hold equal layers", TPU, "pp=3,dp=8,schedule=gpipe", "pp=4,dp=8,schedule=gpipe"),
    ("maxtext", "stages hold equal layers", TPU, "pp=4,dp=8,schedule=gpipe,layers=7/9/8/8", "pp=4,dp=8,schedule=gpipe,layers=8/8/8/8"),
    ("maxtext", "schedule it runs", TPU, "pp=4,dp=8", "pp=4,dp=8,schedule=gpipe"),
    ("maxtext", "schedule it runs", TPU, "pp=4,dp=8,vpp=2", "pp=4,dp=8,schedule=gpipe"),
    ("maxtext", "micro-batches are a multiple of the stages", TPU, "pp=4,dp=8,schedule=gpipe,micro_batch=8", "pp=4,dp=8,schedule=gpipe,micro_batch=4"),
    ("maxtext", "ZeRO 0, 1 over all of dp, or 3", TPU, "dp=32,zero=2", "dp=32,zero=1"),
    ("maxtext", "ZeRO 0, 1 over all of dp, or 3", TPU, "dp=32,dp_replicate=2,zero=1", "dp=32,dp_replicate=2,zero=3"),
    ("maxtext", "cp shards the weights", TPU, "dp=16,cp=2,zero=1", "dp=16,cp=2,zero=3"),
    ("maxtext", "axes of experts", MIXTRAL, "tp=2,dp=16,zero=3,ep=8", "tp=2,dp=16,zero=3,ep=8,etp=2"),
    ("maxtext", "axes of experts", MIXTRAL, "dp=32,zero=1,ep=8", "dp=32,zero=3,ep=8"),
    ("maxtext", "axes of experts", MIXTRAL, "dp=32,dp_replicate=8,zero=3,ep=8", "dp=32,dp_replicate=4,zero=3,ep=8"),
    ("torchtitan", "tp divides the kv heads", LLAMA, "tp=16,dp=2,zero=3", "tp=8,dp=4,zero=3"),
    ("torchtitan", "recompute it has a setting for", LLAMA, "dp=32,zero=3,recompute=mlp", "dp=32,zero=3,recompute=elementwise"),
    ("torchtitan", "one recompute policy for all layers", GLM, "dp=32,zero=3,ep=32,recompute=full/none", "dp=32,zero=3,ep=32,recompute=none"),
    ("torchtitan", "offload it has a setting for", LLAMA, "dp=32,zero=3,offload=optimizer", "dp=32,zero=3"),
    ("torchtitan", "all_gather for cp", LLAMA, "dp=16,cp=2,zero=3,cp_kind=ring", "dp=16,cp=2,zero=3,cp_kind=all_gather"),
    ("torchtitan", "FSDP wherever something is cut", LLAMA, "dp=32,zero=2", "dp=32,zero=3,reshard=false"),
    ("torchtitan", "FSDP wherever something is cut", LLAMA, "tp=2,dp=16,zero=0", "dp=32,zero=0"),
    ("torchtitan", "FSDP wherever something is cut", LLAMA, "cp=2,zero=0,cp_kind=all_gather", "cp=2,zero=3,cp_kind=all_gather"),
    ("torchtitan", "ep out of dp_shard*cp*tp, no etp", MIXTRAL, "tp=2,dp=16,zero=3,ep=8,etp=2", "tp=2,dp=16,zero=3,ep=8,etp=1"),
    ("torchtitan", "ep out of dp_shard*cp*tp, no etp", MIXTRAL, "tp=2,dp=16,zero=3,etp=1", "tp=2,dp=16,zero=3,etp=2"),
    ("torchtitan", "ep out of dp_shard*cp*tp, no etp", MIXTRAL, "dp=32,dp_replicate=8,zero=3,ep=8", "dp=32,dp_replicate=4,zero=3,ep=8"),
    ("deepspeed", "recompute it has a setting for", LLAMA, "dp=32,zero=3,recompute=mlp", "dp=32,zero=3,recompute=full"),
    ("deepspeed", "one recompute policy for all layers", GLM, "dp=32,zero=1,ep=32,recompute=full/none", "dp=32,zero=1,ep=32,recompute=none"),
    ("deepspeed", "activations that it can offload", LLAMA, "dp=32,zero=3,offload=activations", "dp=32,zero=3,recompute=full,offload=activations"),
    ("deepspeed", "optimizer offload needs ZeRO", LLAMA, "dp=32,zero=0,offload=optimizer", "dp=32,zero=1,offload=optimizer"),
    ("deepspeed", "replicas of shards only at ZeRO 3", LLAMA, "dp=32,dp_replicate=4,zero=2", "dp=32,dp_replicate=4,zero=3"),
    ("deepspeed", "ZeRO 0 or 1 in a pipeline", LLAMA, "pp=4,dp=8,zero=2", "pp=4,dp=8,zero=1"),
    ("deepspeed", "no cp in a pipeline", LLAMA, "pp=4,dp=4,cp=2,cp_kind=all_to_all", "dp=16,cp=2,cp_kind=all_to_all"),
    ("deepspeed", "schedule it runs", LLAMA, "pp=4,dp=8,schedule=gpipe", "pp=4,dp=8"),
    ("deepspeed", "schedule it runs", LLAMA, "pp=4,dp=8,vpp=2", "pp=4,dp=8"),
    ("deepspeed", "stages hold equal layers", LLAMA, "pp=3,dp=8", "pp=4,dp=8"),
    ("deepspeed", "AutoTP keeps norms whole", LLAMA, "tp=4,dp=8", "tp=4,dp=8,sp=false"),
    ("deepspeed", "cp is Ulysses", LLAMA, "cp=2,dp=16,cp_kind=ring", "cp=2,dp=16,cp_kind=all_to_all"),
    ("deepspeed", "ep from the data ranks", MIXTRAL, "tp=2,sp=false,dp=16,zero=1,ep=8", "dp=32,zero=1,ep=8"),
    ("deepspeed", "ep from the data ranks", MIXTRAL, "dp=32,dp_replicate=2,zero=3,ep=8", "dp=32,zero=3,ep=8"),
    ("calculon", "recompute it has a setting for", GPT, "dp=32,recompute=mlp", "dp=32,recompute=attention"),
    ("calculon", "one recompute policy for all layers", GLM, "dp=32,recompute=full/none", "dp=32,recompute=full"),
    ("calculon", "offload it has a setting for", LLAMA, "dp=32,offload=activations", "dp=32"),
    ("calculon", "schedule it runs", GPT, "pp=2,dp=16,schedule=gpipe", "pp=2,dp=16"),
    ("calculon", "stages hold equal layers", GPT, "pp=32,layers=2/2/2/2/2/2/2/2/2/2/2/2/2/2/2/2/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1", "pp=16,dp=2"),
    ("calculon", "no cp, no experts", LLAMA, "dp=16,cp=2", "dp=16,tp=2"),
    ("calculon", "optimizer sharding at most", GPT, "dp=32,zero=2", "dp=32,zero=1"),
    ("calculon", "optimizer sharding at most", GPT, "dp=32,dp_replicate=2,zero=1", "dp=32,zero=1"),
    ("calculon", "every processor", GPT, "dp=16", "dp=32"),
    ("megatron", "schedule it runs", LLAMA, "pp=4,dp=8,schedule=zb_h1", "pp=4,dp=8,vpp=2"),
    ("megatron", "one recompute policy per layer kind", LLAMA, "pp=2,dp=16,recompute=full*3|none*13;none", "pp=2,dp=16,recompute=full"),
    ("megatron", "recompute it has a setting for", LLAMA, "dp=32,recompute=save(core+up)", "dp=32,recompute=attention"),
    ("maxtext", "one recompute policy per layer kind", TPU, "dp=32,zero=3,recompute=full*3|none*29", "dp=32,zero=3,recompute=none"),
    ("maxtext", "one recompute policy per layer kind", TPU, "dp=32,zero=3,recompute=mlp:offload(qkv),offload=activations", "dp=32,zero=3,recompute=mlp,offload=activations"),
    ("maxtext", "recompute it has a setting for", TPU, "dp=32,zero=3,recompute=save(qkv+up)", "dp=32,zero=3,recompute=save(input)"),
    ("torchtitan", "schedule it runs", LLAMA, "pp=4,dp=8,zero=3,schedule=zb_h2", "pp=4,dp=8,zero=3,schedule=dualpipev"),
    ("torchtitan", "one recompute policy per layer kind", LLAMA, "pp=2,dp=16,zero=3,recompute=full;none", "pp=2,dp=16,zero=3,recompute=full;full"),
    ("deepspeed", "schedule it runs", LLAMA, "pp=4,dp=8,schedule=dualpipev", "pp=4,dp=8"),
    ("deepspeed", "one recompute policy per layer kind", LLAMA, "pp=2,dp=16,recompute=full;none", "pp=2,dp=16,recompute=none;none"),
    ("calculon", "one recompute policy per layer kind", GPT, "dp=32,recompute=full*3|none*45", "dp=32,recompute=full*48"),
    ("megatron", "offload it has a setting for", LLAMA, "dp=32,zero=3,offload=parameters", "dp=32,zero=1,offload=optimizer"),
    ("megatron", "gathered weights are freed after forward", LLAMA, "dp=32,zero=3,reshard=false", "dp=32,zero=3"),
    ("maxtext", "gathered weights are freed after forward", TPU, "dp=32,zero=3,reshard=false", "dp=32,zero=3"),
    ("deepspeed", "gathered weights are freed after forward", LLAMA, "dp=32,zero=3,reshard=false", "dp=32,zero=3"),
]  # fmt: skip
OUT_OF_ORDER = ((("pp", 8),), (("dp_replicate", 4),))
IN_ORDER = ((("dp_replicate", 4), ("pp", 2)), (("pp", 4),))


def under(launcher: str, question: Setting) -> Setting:
    return replace(question, launcher=launcher)


@pytest.mark.parametrize(("launcher", "name", "question", "bad", "good"), CASES)
def test_a_rule_refuses_what_breaks_it_and_not_its_neighbour(
    launcher: str, name: str, question: Setting, bad: str, good: str
) -> None:
    asked = under(launcher, question)
    wrong, right = (complete(question, parse_layout(text)) for text in (bad, good))
    broken = [rule.name for rule in broken_rules(asked, wrong)]
    assert f"{launcher}: {name}" in broken
    assert f"{launcher}: {name}" not in [rule.name for rule in broken_rules(asked, right)]
    rule = next(r for r in LAUNCHERS[launcher].rules if r.name == f"{launcher}: {name}")
    only = replace(LAUNCHERS[launcher], rules=(rule,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAUNCHERS, launcher, only)
        with pytest.raises(LayoutError) as error:
            runnable(asked, parse_layout(bad))
    text = str(error.value)
    assert text.startswith(f"{launcher} cannot run this layout: ")
    assert f"({rule.source}); or price it with --launcher any" in text
    assert "\n" not in text and "use " in text
    # The rules stated a second time agree.
    assert refused(launcher, question, wrong)


def test_a_placement_in_no_rank_order_is_refused() -> None:
    for launcher, good in (("megatron", True), ("torchtitan", False), ("deepspeed", False)):
        layout = Layout(pp=8, dp_replicate=4, policies=("full",), placement=OUT_OF_ORDER)
        names = [rule.name for rule in broken_rules(under(launcher, GPT), layout)]
        assert (f"{launcher}: rank order" not in names) is good  # megatron has tp-cp-ep-pp-dp
        assert ("rank order" not in refused(launcher, GPT, layout)) is good
        layout = replace(layout, placement=IN_ORDER)
        names = [rule.name for rule in broken_rules(under(launcher, GPT), layout)]
        assert f"{launcher}: rank order" not in names
    spread = Layout(dp_replicate=32, placement=((("dp_replicate", 8),), (("dp_replicate", 4),)))
    names = [rule.name for rule in broken_rules(under("calculon", GPT), spread)]
    assert names == ["calculon: a degree on one network"]


def test_every_rule_has_a_case() -> None:
    tried = {f"{launcher}: {name}" for launcher, name, *_ in CASES}
    rules = {rule.name for launcher in LAUNCHERS.values() for rule in launcher.rules if rule.reads}
    assert tried == rules
    rest = {rule.name for launcher in LAUNCHERS.values() for rule in launcher.rules if not rule.reads}
    assert rest == {
        "megatron: rank order", "torchtitan: rank order", "deepspeed: rank order", "calculon: a degree on one network"
    }  # fmt: skip


@pytest.mark.parametrize("launcher", RUNS)
def test_a_launcher_says_of_every_schedule_whether_it_runs_it(launcher: str) -> None:
    schedules = [rule for rule in LAUNCHERS[launcher].rules if rule.name == f"{launcher}: schedule it runs"]
    for word in SCHEDULES:
        text = f"pp=4,dp=8,schedule={word}" + (",vpp=2" if word in ("interleaved", "dualpipev") else "")
        rows = Rows.of([complete(LLAMA, parse_layout(text))], LLAMA)
        ours = [bool(rule.holds(LLAMA, rows).all()) for rule in schedules]
        assert ours == [word in RUNS[launcher]] == [LAUNCHERS[launcher].takes("schedule", word)]
        for free in ("jax", "any"):
            assert LAUNCHERS[free].takes("schedule", word)


def test_rules_agree_with_their_second_statement_on_random_layouts() -> None:
    """What `broken_rules` says of layouts at random, and what plain Python says."""
    random = np.random.default_rng(7)
    both = {True: 0, False: 0}
    for question in (LLAMA, MIXTRAL, GLM):
        for _ in range(400):
            layout = draw(random, question)
            if layout is None:
                continue
            for launcher in ("megatron", "maxtext", "torchtitan", "deepspeed", "calculon"):
                ours = not broken_rules(under(launcher, question), layout)
                assert ours == (not refused(launcher, question, layout)), (launcher, layout)
                both[ours] += 1
    assert min(both.values()) > 100


NAMED = ("none", "none", "full", "mlp", "elementwise", "attention")
BY_TENSOR = ("save(core+up)", "mlp:offload(qkv+out)", "full:offload(input)", "save(input)")


def draw(random: np.random.Generator, question: Setting) -> Layout | None:
    """A legal layout on the usual placement, or nothing."""
    kinds = len(question.model.kinds)
    pick = lambda *values: values[int(random.integers(len(values)))]
    pp, vpp = pick(1, 1, 2, 4), 1
    tp, cp = pick(1, 1, 2, 4, 16), pick(1, 1, 2)
    if pp > 1 and kinds == 1:
        vpp = pick(1, 1, 2)
    mixture = any(k.ffn.experts for k in question.model.kinds)
    words = (*NAMED, *NAMED, *BY_TENSOR)
    policies = tuple(pick(*words) for _ in range(kinds))
    stages = tuple((pick(*words),) for _ in range(pp)) if random.random() < 0.15 else ()
    try:
        layout = Layout(
            dp_replicate=pick(1, 1, 2, 4), dp_shard=pick(1, 2, 4, 8), zero=pick(0, 1, 2, 3), cp=cp,
            cp_kind=pick("ring", "all_to_all", "all_gather"), tp=tp, sp=pick(True, False), pp=pp, vpp=vpp,
            schedule=pick("interleaved", "dualpipev") if vpp > 1 else pick("1f1b", "gpipe", *(("zb_h1",) if pp > 1 else ())),
            ep=pick(1, 2, 4, 8) if mixture else 1, etp=pick(1, tp) if mixture else 1, micro_batch=pick(1, 2),
            policies=("none",) if stages else policies if random.random() < 0.5 else policies[:1] * kinds,
            stage_policies=stages,
            offload=pick("none", "none", "none", "activations", "optimizer") if question is not GLM else "none",
        )  # fmt: skip
        return complete(question, layout)
    except InputError:
        return None


def test_launchers_without_limits_run_everything() -> None:
    random = np.random.default_rng(3)
    layouts = [x for _ in range(50) if (x := draw(random, LLAMA)) is not None]
    for name in ("jax", "any"):
        assert not LAUNCHERS[name].bounds
        assert all(not broken_rules(under(name, LLAMA), x) for x in layouts)
        assert all(rule.holds(LLAMA, Rows.of(layouts, LLAMA)).all() for rule in LAUNCHERS[name].rules)


def test_launcher_and_framework_go_together() -> None:
    assert agreed(None, None) == ("jax", "jax")
    assert agreed(None, "megatron") == ("any", "megatron")
    assert agreed("maxtext", None) == ("maxtext", "jax")
    assert agreed("torchtitan", "megatron") == ("torchtitan", "megatron")
    assert agreed("any", "megatron") == ("any", "megatron")
    with pytest.raises(InputError) as error:
        agreed("maxtext", "megatron")
    assert str(error.value) == (
        "launcher maxtext holds memory as jax does, framework=megatron does not; leave --framework out, or use "
        "--launcher any"
    )
    with pytest.raises(UnknownNameError, match="unknown launcher 'megatrn'; did you mean megatron"):
        agreed("megatrn", None)


def test_a_launcher_for_gpus_refuses_tpus() -> None:
    with pytest.raises(InputError) as error:
        resolve("llama-3-8b", "v5p:2x2x1", LLAMA.training, launcher="megatron")
    assert str(error.value) == (
        "launcher megatron runs on GPUs of NVIDIA and AMD, v5p:2x2x1 is of Google; use --launcher maxtext or jax"
    )


def test_an_estimate_takes_the_fastest_placement_that_the_launcher_can_number() -> None:
    layout = parse_layout("tp=2,dp=4,pp=4,recompute=full")
    free = price(LLAMA, layout)
    bound = price(under("torchtitan", LLAMA), replace(layout, dp_replicate=1, dp_shard=4, zero=3))
    assert not refused("torchtitan", LLAMA, bound.layout)
    assert free.inputs["launcher"] == "any" and bound.inputs["launcher"] == "torchtitan"
    own = price(under("deepspeed", LLAMA), replace(layout, sp=False))
    assert own.estimate.step_s >= price(LLAMA, replace(layout, sp=False)).estimate.step_s


def test_rules_were_written_for_every_decision_that_there_is() -> None:
    """A new field of a layout, or a new offload class, is one that each launcher's rules must first be asked about."""
    assert {f.name for f in fields(Layout)} == {
        "dp_replicate", "dp_shard", "zero", "cp", "cp_kind", "tp", "sp", "pp", "vpp", "schedule", "ep", "etp", "micro_batch",
        "sequences", "layers_per_stage", "policies", "stage_policies", "offload", "placement", "reshard",
    }  # fmt: skip
    parts = {part for offload in OFFLOADS for part in offload.split("+")}
    assert parts == {"none", "activations", "optimizer", "gradients", "parameters"}
