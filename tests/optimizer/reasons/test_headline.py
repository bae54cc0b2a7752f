"""The sentence of a proven no names all that clashes: constraints, rules of layouts and of the launcher, memory."""

import random
from itertools import combinations

import pytest
from exhaustive_oracle import Wishes, candidates, placements_of
from instances import instance

import meshwright as mw
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.cli import main
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.reasons.limits import CONSTRAINT, wishes_of, without
from meshwright.optimizer.reasons.rule_clash import clash_of_rules, legal_row
from meshwright.optimizer.reasons.solving import Case
from meshwright.optimizer.wishes import refuse_impossible

RUN = Training(2**18, 8192)
RULES = [
    (
        "llama-3-8b", "h100:8x1", "megatron", "reshard==false, tp<=8",
        (
            "constraint 'reshard==false' and the launcher rule 'megatron: gathered weights are freed after forward' leave no "
            "layout: Megatron FSDP frees what it gathers (--torch-fsdp2-no-reshard-after-forward is of --use-torch-fsdp2, whose "
            "habits are not these); reshard=false keeps gathered weights for backward: use reshard=true. Drop or widen the "
            "constraint, or use --launcher any."
        ),
    ),
    (
        "llama-3-8b", "h100:8x1", "torchtitan", "zero==1",
        (
            "constraint 'zero==1' and the launcher rule 'torchtitan: FSDP wherever something is cut' leave no layout: FSDP is ZeRO "
            "3 (fsdp_reshard_after_forward always, or never: reshard=false), and replicas without it go with nothing else; zero=1 "
            "with dp_replicate=1, cp=2, tp=1, pp=1: use zero=3. Drop or widen the constraint, or use --launcher any."
        ),
    ),
    (
        "llama-3-8b", "h100:8x1", "deepspeed", "pp==3",
        (
            "constraint 'pp==3' and the launcher rule 'deepspeed: stages hold equal layers' leave no layout: pipeline.partition "
            "balances the layers, and only an even cut is sure; 32 layers over pp=3, vpp=1 as layers=11/11/10 are not; use a pp "
            "that divides them. Drop or widen the constraint, or use --launcher any."
        ),
    ),
    (
        "deepseek-v3", "h100:8x4", None, "schedule==dualpipev",
        (
            "constraint 'schedule==dualpipev' and the rule 'interleaved chunks are equal within a stage' leave no layout: vpp=2 of "
            "dualpipev needs the 61 layers to be a multiple of vpp times the pattern's period 61, with one such group a stage; use "
            "another schedule. Drop or widen the constraint."
        ),
    ),
    (
        "llama-3-8b", "h100:8x1", None, "reshard==false, zero<=2",
        (
            "constraints 'reshard==false' and 'zero<=2' leave no layout: weights stay gathered (reshard=false) only under zero=3, "
            "the lower levels gather none. Drop or widen one of the constraints."
        ),
    ),
    (
        "llama-3-8b", "h100:8x1", None, "dp==8, sp==false",
        (
            "constraints 'dp==8' and 'sp==false' leave no layout: at least 16 devices are needed (sp=false needs tp above 1), "
            "h100:8x1 has 8. Drop or widen one of the constraints."
        ),
    ),
    (
        "llama-3-8b", "h100:8x1", None, "pp==3, vpp==2",
        (
            "constraints 'pp==3' and 'vpp==2' leave no layout: interleaving runs whole rounds of pp micro-batches. Drop or "
            "widen one of the constraints."
        ),
    ),
    (
        "llama-3-8b", "h100:5x1", "calculon", None,
        (
            "the launcher rule 'calculon: stages hold equal layers' and the launcher rule 'calculon: every processor' leave no "
            "layout: blocks are split evenly over pipeline_par and pipeline_interleaving; 32 layers over pp=5, vpp=1 as "
            "layers=7/7/6/6/6 are not; use a pp that divides them; num_procs is the product of the degrees; 1 of 5 devices are "
            "used: use all. Change the batch or the machine, or use --launcher any."
        ),
    ),
    (
        "llama-3-8b", "h100:8x2", None, "devices==12, tp==8",
        "constraints 'devices==12' and 'tp==8' leave no layout: devices is dp*cp*tp*pp. Drop or widen one of the constraints.",
    ),
    (
        "llama-3-8b", "h100:4x2", None, "pp==5",
        (
            "constraint 'pp==5' and the rule 'the degrees fit the network together' leave no layout: pp=5 cannot be laid over "
            "nvlink 4 x ib400 2: each level must hold a whole factor of every degree. Drop or widen the constraint."
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "cluster", "launcher", "text", "reason"), RULES, ids=lambda x: str(x)[:24] if x else ""
)
def test_rules_that_clash_are_named_with_what_they_say(
    model: str, cluster: str, launcher: str | None, text: str | None, reason: str
) -> None:
    with pytest.raises(mw.Infeasible) as no:
        mw.recommend(model, cluster, RUN, constraints=text, launcher=launcher)
    assert no.value.reason == reason and no.value.short_bytes is None
    assert no.value.clash is not None and no.value.clash.proven
    for limit in no.value.clash.limits:
        assert repr(limit.text) in reason or limit.text in reason


MEMORY = ["recommend", "llama-3-70b", "--cluster", "h100:8x2", "--batch", "256Ki", "--seq", "8192"]


@pytest.mark.parametrize(
    ("words", "told", "not_told"),
    [
        (["--constraint", "tp<=8"], "the device memory is too small for every layout.", "tp<=8"),
        (["--constraint", "tp<=8", "--no-ways-out"], "for every layout under constraint 'tp<=8'.", "can run"),
        (
            ["--constraint", "tp<=8", "--launcher", "megatron", "--no-ways-out"],
            "for every layout under constraint 'tp<=8' that megatron can run.",
            "zero",
        ),
        (
            ["--cluster", "h200:8x2", "--constraint", "zero==0,tp<=8,pp==1"],
            "the device memory is too small for every layout under constraints 'zero==0', 'tp<=8' and 'pp==1'.",
            "can run",
        ),
    ],
    ids=["narrowed", "all", "launcher", "needed"],
)
def test_where_memory_decides_what_it_decides_under_is_named(
    words: list[str], told: str, not_told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that was asked for; of the clash alone where that was looked for."""
    assert main([*MEMORY, *words]) == 3
    page, line = capsys.readouterr()
    assert told in line and told in " ".join(page.split())
    assert not_told not in line.partition("Offload")[0]


OPEN = f"sp in {{true,false}}, schedule in {{{','.join(SCHEDULES)}}}"  # as the loops have them


@pytest.mark.parametrize("seed", [3, 12, 15, 17, 21, 33, 40])
def test_a_clash_of_rules_is_one_where_plain_loops_find_no_layout(seed: int) -> None:
    """Pairs of values of random questions: a clash just where no legal layout has both, with a cause, and minimal."""
    setting = instance(seed).setting
    found = [
        {n: getattr(x, n) for n in ("zero", "cp", "tp", "pp", "vpp", "ep", "etp", "micro_batch", "dp_shard")}
        | {"schedule": x.schedule, "sp": str(x.sp).lower(), "reshard": str(x.reshard).lower()}
        for x in candidates(setting, Wishes(asks_schedule=True, asks_sp=True))
        if placements_of((x.tp, x.cp, x.dp_shard, x.dp_replicate, x.pp), setting.cluster.levels)
    ]
    values = {(name, x[name]) for x in found for name in x}
    pairs = [(a, b) for a, b in combinations(sorted(values, key=str), 2) if a[0] != b[0]]
    clashes = 0
    for pair in random.Random(seed).sample(pairs, min(len(pairs), 150)):
        texts = [f"{name}=={value}" for name, value in pair]
        wishes = parse_constraints(", ".join((*texts, OPEN)))
        try:
            refuse_impossible(setting, wishes)
        except LayoutError:
            continue
        case = Case(setting, wishes)
        clash = clash_of_rules(case, 16)
        assert (clash is None) == any(all(x[n] == v for n, v in pair) for x in found), pair
        if clash is not None:
            clashes += 1
            assert clash.proven and any(x.kind != CONSTRAINT for x in clash.limits), pair
            assert {x.text for x in clash.limits if x.kind == CONSTRAINT} <= {*texts}
            for limit in wishes_of(case):
                spared = legal_row(without(case, [limit]), 16)[0]
                assert spared is not None or limit.text not in {x.text for x in clash.limits}
    assert clashes > 5
