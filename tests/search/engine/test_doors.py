"""What the doors refuse, in one typed line, and laws that no table holds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shape_cases import LAWS

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, MeshwrightError
from meshwright.search import law_forms
from meshwright.search.engine.answers import NoShape
from meshwright.search.engine.question import Limit, Question
from meshwright.search.engine.search import Effort
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.grid import load_grid
from meshwright.search.law import Law
from meshwright.search.law_columns import LawError

GRID = load_grid("plas")
ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
PLAS = LAWS["plas-10b"]


def asked(**changes: Any) -> Question:
    given: dict[str, Any] = {"grid": GRID, "law": PLAS, "device": ORIN, "request": FP16}
    return Question(**given | changes)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Limit("total", 1.0), "unknown resource 'total'"),
        (lambda: Limit(3, 1.0), "a resource is 3"),  # type: ignore[arg-type]
        (lambda: Limit("total_s", "1 s"), "most of total_s is '1 s'"),  # type: ignore[arg-type]
        (lambda: Limit("total_s", float("nan")), "most of total_s is nan"),
        (lambda: Limit("total_s", 1.0, 2.0), "the least is above the most"),
        (lambda: asked(grid="plas"), "grid is 'plas'"),
        (lambda: asked(law="plas-10b"), "law is 'plas-10b'"),
        (lambda: asked(limits=[Limit("total_s", 1.0)]), "limits is"),
        (lambda: asked(limits=(1.0,)), "a limit is 1.0"),
        (lambda: asked(limits=(Limit("total_s", 1.0), Limit("total_s", least=0.1))), "two limits on one resource"),
        (lambda: asked(tokens=-1.0), "tokens is -1.0"),
        (lambda: asked(tokens="1T"), "tokens is '1T'"),
        (lambda: asked(inside_only=1), "inside_only is 1"),
        (lambda: asked(device=Device.ideal(np.ones(2), 1.0, np.ones(2))), "a column of devices"),
        (lambda: best_shape("plas"), "question is 'plas'"),  # type: ignore[arg-type]
        (lambda: best_shape(asked(), against="latency"), "unknown resource 'latency'"),
        (lambda: best_shape(asked(), count=0), "count is 0"),
        (lambda: best_shape(asked(), effort=3), "effort is 3"),  # type: ignore[arg-type]
        (lambda: best_shape(asked(latency="fast")), "unknown latency 'fast'"),
        (lambda: best_shape(asked(law=LAWS["besiroglu"])), "law besiroglu needs"),
        (lambda: best_shape(asked(request=Request(2, 8, 8, 2, 2), latency="plas")), "batch 1"),
        (lambda: best_shape(asked(law=LAWS["abnar"], tokens=1e11, inside_only=True)), "unknown"),
        (lambda: best_shape(asked(tokens=1e12, inside_only=True)), "fitted at 1e"),
        (lambda: exact_front(asked(), apart=1.0), "apart is 1.0"),
        (lambda: exact_front(asked(), apart="2%"), "apart is '2%'"),  # type: ignore[arg-type]
        (lambda: Effort(pairs=-1), "pairs=-1"),
        (lambda: Effort(rows=1.5), "rows=1.5"),  # type: ignore[arg-type]
        (lambda: Effort(work=0), "work=0"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_line(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_grid_whose_rules_leave_nothing() -> None:
    odd = GRID.model_copy(update={"head_dim": (100,)})
    with pytest.raises(NoShape, match="the last to take some away is heads_fill_width") as error:
        exact_front(asked(grid=odd))
    assert error.value.to_dict() == {
        "status": "INFEASIBLE", "reason": str(error.value), "limit": None, "least": None, "beside": False,
    }  # fmt: skip


def test_a_law_with_a_valley_in_the_number_of_parameters_is_refused() -> None:
    """The term h Na / N + k / Na^al turns where k is large enough; no corner of sizes is its least."""
    made = LAWS["zhao"].model_dump()
    made["coefficients"] |= {"k": 30.0, "h": 0.05}
    with pytest.raises(LawError, match="neither rises nor falls throughout"):
        best_shape(asked(law=Law.model_validate(made), tokens=1e11))


def test_a_term_of_attention_with_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    form = law_forms.FORMS["size"]
    mixed = law_forms.Form(form.coefficients, {"size": ("kv_width", "layers"), "floor": ()}, form.terms)
    monkeypatch.setitem(law_forms.FORMS, "mixed", mixed)  # type: ignore[arg-type]
    made = PLAS.model_dump() | {
        "form": "mixed", "coefficients": {"A": 1.0, "a": 1.0, "floor": 1.0},
        "box": {n: {"low": 1, "high": 10, "basis": "paper"} for n in ("kv_width", "layers")},
    }  # fmt: skip
    with pytest.raises(LawError, match="attention together with the rest"):
        best_shape(asked(law=Law.model_validate(made)))


def test_errors_carry_their_exit_code() -> None:
    assert NoShape("x").exit_code == 3
    assert issubclass(NoShape, MeshwrightError)
