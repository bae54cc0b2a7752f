"""docs/json.md names every key that `--json` prints, and no other."""

import re
from pathlib import Path
from typing import Any

import meshwright as mw
from meshwright.costmodel.estimate import PARTS
from meshwright.optimizer.question import price, resolve

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
FREE = {"certificate.entered", "certificate.removed", "provenance.versions"}  # keys are names, not fields


def keys(data: Any, path: str = "") -> set[str]:
    """Dotted keys; lists count as their entries."""
    if isinstance(data, list):
        return set().union(*(keys(item, path) for item in data))
    if not isinstance(data, dict) or path in FREE:
        return set()
    found = set()
    for key, value in data.items():
        here = f"{path}.{key}".lstrip(".")
        found |= {here} | keys(value, here)
    return found


def printed() -> set[str]:
    asked = mw.Training(2**19, 8192, total_tokens=10**12)
    plan = mw.recommend("llama-3-8b", "h100:8x1", asked).to_dict()
    own = price(resolve("mixtral-8x7b", "v5p:4x4x4", asked), mw.parse_layout("dp=64,zero=3,ep=8")).to_dict()
    return {k for k in keys(plan) | keys(own) if not k.startswith(("runner_ups.layout.", "memory."))}


def test_the_page_names_every_key() -> None:
    of_plans = PAGE.read_text(encoding="utf-8").split("## Reasons")[0]  # the rest: tests/optimizer/reasons
    named = {m[1] for m in re.finditer(r"^\| `([a-z0-9_.]+)`", of_plans, re.MULTILINE)}
    parts = {f"estimate.parts.{part}" for part in PARTS}
    assert named == printed() - parts


def test_the_page_names_every_part_and_memory_part() -> None:
    text = PAGE.read_text(encoding="utf-8")
    priced = price(
        resolve("mixtral-8x7b", "v5p:4x4x4", mw.Training(2**19, 8192)), mw.parse_layout("dp=64,zero=3")
    )
    for name in (*PARTS, *priced.memory[0]):
        assert f"`{name}`" in text, name
