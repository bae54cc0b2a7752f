"""Law files: names with near ones, a user's own file, and what is told of one that is no law."""

from importlib.resources import files

import pytest
import yaml

from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.search.law import load_law
from meshwright.search.law_columns import Columns, LawError
from meshwright.search.law_precision import load_correction

DATA = files("meshwright.search") / "data" / "laws"


def test_unknown_names():
    with pytest.raises(UnknownNameError) as caught:
        load_law("plas")
    assert str(caught.value) == (
        "unknown loss law 'plas'; did you mean plas-10b? Known: abnar, besiroglu, clark-sbase, gemstones-wdpt, "
        "krajewski, plas-10b, zhao (a path to a YAML file works too)"
    )
    with pytest.raises(UnknownNameError, match=r"^unknown precision correction 'kumr'; did you mean kumar"):
        load_correction("kumr")
    with pytest.raises(LawError) as refused:
        load_law("kumar")
    assert str(refused.value) == (
        "kumar corrects the parameters that another law reads and is no law of its own; choose one of abnar, "
        "besiroglu, clark-sbase, gemstones-wdpt, krajewski, plas-10b, zhao"
    )
    with pytest.raises(InputError, match=r"^a loss law is 3; give its name or the path of a YAML file$"):
        load_law(3)


def written(tmp_path, **changes):
    raw = yaml.safe_load((DATA / "besiroglu.yaml").read_text()) | changes
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in raw.items() if v is not None}))
    return str(path)


def test_a_users_file_is_a_law(tmp_path):
    law = load_law(written(tmp_path, name="mine"))
    base = load_law("besiroglu").loss(Columns(parameters=1e9, tokens=20e9))
    assert law.loss(Columns(parameters=1e9), tokens=20e9).loss == base.loss


RANGE = {"low": 1, "high": 2, "basis": "paper"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": None}, "the key source is missing"),
        ({"data": 1}, "the key 'data' is not known; allowed: name, title, form"),
        ({"form": "size_token"}, "unknown form 'size_token'; did you mean size_tokens"),
        ({"coefficients": {"A": 1, "a": 1, "B": 1, "b": 1}}, "coefficients lacks floor"),
        ({"box": {"parameters": RANGE}}, "box lacks tokens"),
        ({"box": {"parameters": RANGE, "tokens": RANGE, "depth": RANGE}}, "box has depth, which the form does not read"),
        ({"tokens": 1e9}, "form size_tokens has a term in tokens; give them in box, not as one number"),
        ({"counts": None}, "counts is missing, and the form reads parameters"),
        ({"counts": {"what": "some", "basis": "paper", "note": ""}}, "counts.what is 'some'; expected"),
        ({"counts": {"what": "unknown", "basis": "paper", "note": ""}}, "'what: unknown' stands where, and only where"),
        ({"counts": {"what": "unknown", "basis": "unknown", "note": ""}}, "box has a range of parameters, and what"),
        (
            {"granularity": {"what": "active_experts", "basis": "paper", "note": ""}},
            "granularity is given, and the form reads nothing of it",
        ),
        ({"unit": "bits"}, "unit is 'bits'; expected 'nats per token'"),
        ({"box": {"parameters": RANGE, "tokens": RANGE | {"low": 3}}}, "low 3 is above high 2"),
        ({"box": {"parameters": RANGE, "tokens": {"low": 1, "basis": "paper"}}}, "a range has low and high, or values"),
        ({"box": {"parameters": RANGE, "tokens": {"basis": "paper"}}}, "'basis: unknown' stands where, and only where"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_law(tmp_path, changes, told):
    with pytest.raises(InputError) as caught:
        load_law(written(tmp_path, **changes))
    message = str(caught.value)
    assert told in message
    assert "mine.yaml" in message and "\n" not in message
