"""Policies stage by stage: how they are written, what is refused, and that a stage is the sum of its layers."""

import re

import pytest
from costmodel_cases import make_setting

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout, layout_text, parse_layout
from meshwright.hardware.errors import LayoutError


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("pp=2,recompute=full*3|none*5;none", (("full*3|none*5",), ("none",))),
        ("pp=2,recompute=full*3|save(core)*5", (("full*3|save(core)*5",),)),
        ("pp=2,recompute=full*1|none*2/none;-/save(up)", (("full*1|none*2", "none"), ("-", "save(up)"))),
    ],
)
def test_a_layout_reads_policies_by_stage(text: str, stages: tuple[tuple[str, ...], ...]) -> None:
    layout = parse_layout(text)
    assert (layout.policies, layout.stage_policies) == (("none",), stages)
    assert Layout.from_dict(layout.to_dict()) == layout == parse_layout(layout_text(layout))
    assert sum(n or 0 for _, n in layout.mix(0, 0)) == (3 if "1|" in text else 8)
    assert layout.mix(1, 0) == (() if "-" in stages[-1] else layout.mix(1, 0))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("recompute=full*3|none", "'none' does not say for how many layers; write full*3|none*5"),
        ("recompute=full*0|none*2", "'full*0' does not say for how many layers"),
        (
            "pp=3,recompute=full;none",
            "recompute is given for 2 stages, pp is 3; give one each, or one for all",
        ),
        ("recompute=fill*3|none*5", "recompute='fill' is not one of none, elementwise, attention, mlp, full"),
    ],
)
def test_a_mix_that_does_not_read_is_told(text: str, told: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(told)):
        parse_layout(text)


def test_a_mix_is_for_as_many_layers_as_the_stage_has() -> None:
    given = make_setting("llama-3-8b")
    with pytest.raises(LayoutError, match="stage 0 is for 33 dense layers, it has 32; make them 32"):
        estimate(given, parse_layout("recompute=full*1|none*32"))


def test_a_framework_with_one_policy_for_all_stages_takes_no_mix() -> None:
    given = make_setting("llama-3-8b", framework="megatron")
    with pytest.raises(LayoutError, match="recompute differs from stage to stage, which megatron cannot"):
        estimate(given, parse_layout("recompute=full*1|none*31"))


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_mixed_stage_is_the_sum_of_its_layers(chunks: int) -> None:
    """Seconds and saved bytes are those of its layers one by one; what runs backward is that of the heaviest."""
    given = make_setting("llama-3-8b", "h100:8x4", sequences=64)
    base = f"tp=2,pp=4,vpp={chunks},dp=4,zero=1,micro_batch=1"
    full, none, mixed = (
        estimate(given, parse_layout(f"{base},recompute={policy}"))
        for policy in ("full", "none", "full*3|none*5")
    )
    share = 3 / 8
    for part in ("compute", "recompute", "tp"):
        parts = share * full.parts[part] + (1 - share) * none.parts[part]
        assert mixed.parts[part] == pytest.approx(parts, rel=1e-9)
    for stage in range(4):
        kept = share * full.memory[stage]["activations"] + (1 - share) * none.memory[stage]["activations"]
        assert mixed.memory[stage]["activations"] == pytest.approx(kept, rel=1e-9)
        heaviest = max(full.memory[stage]["working"], none.memory[stage]["working"])
        assert mixed.memory[stage]["working"] == pytest.approx(heaviest, rel=1e-9)
    assert sum(mixed.parts.values()) == pytest.approx(mixed.step_s, rel=1e-9)
