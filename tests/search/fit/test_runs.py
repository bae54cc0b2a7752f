"""Runs: what a CSV file may hold, in words where it is wrong, and what laws read of it."""

import numpy as np
import pytest

from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.search.fit.choose import GRANULARITY, choose
from meshwright.search.fit.fit import fit_law
from meshwright.search.fit.runs import Runs, RunsError, load_runs, runs_of
from meshwright.search.fit.scores import nearest, ranks, scores, spearman

HEAD = "l,d,n_heads,n_kv,head_dim,ffn,experts,top_k,shared,tokens,params_total,params_active,loss"
ROW = "24,1024,8,2,128,512,16,3,1,10e9,2e9,4e8,2.9"


def written(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("text", [f"{HEAD}\n{ROW}\n", f"\ufeff{HEAD}\r\n{ROW}\r\n\r\n", f" {HEAD} \n {ROW} "])
def test_what_laws_read_of_a_row(tmp_path, text):
    runs = load_runs(written(tmp_path, text))
    columns = runs.read(GRANULARITY["granular"])
    got = {name: column.item() for name, column in columns.given().items()}
    assert got == {
        "layers": 24, "width": 1024, "ffn_ratio": 2, "activation": 4 / 17, "kv_width": 256, "gqa": 4, "experts": 16,
        "top_k": 3, "parameters": 2e9, "active_parameters": 4e8, "tokens": 10e9, "granularity": 8, "shared_share": 0.25,
    }  # fmt: skip
    assert runs.read(GRANULARITY["comprehensive"]).given()["granularity"].item() == 4
    assert runs.dense() is False and runs.weight.tolist() == [1]


def test_a_file_of_sizes_alone_gives_sizes_alone():
    runs = runs_of([{"params_total": 1e9, "tokens": "2e10", "loss": 3}])
    assert set(runs.read().given()) == {"parameters", "tokens"}
    assert runs.dense() is None
    assert runs.lacks(("layers", "kv_width")) == (
        "l", "d", "n_heads", "n_kv", "head_dim", "ffn", "experts", "top_k", "shared",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{HEAD},tpu\n{ROW},1\n", "unknown column of"),
        ("l,d\n1,2\n", "has no column loss; a law is fitted to losses in nats per token"),
        (f"{HEAD}\n", "has no row; give one per trained model"),
        (f"{HEAD}\n{ROW},7\n", "row 1: 14 values under 13 columns"),
        (f"{HEAD},loss\n{ROW},7\n", "names the column 'loss' twice"),
        (
            f"{HEAD}\n{ROW.replace('1024', 'wide')}\n",
            "row 1: d is 'wide'; give a number (width of the model)",
        ),
        (f"{HEAD}\n{ROW.replace('2.9', '')}\n", "row 1: loss is ''; give a number (nats per token)"),
        (f"{HEAD}\n{ROW}\n{ROW.replace('2.9', 'nan')}\n", "row 2: loss is nan; give a finite number above 0"),
        (f"{HEAD}\n{ROW.replace('10e9', '-1')}\n", "row 1: tokens is -1; give a finite number above 0"),
        (f"{HEAD}\n{ROW.replace('24,', '24.5,')}\n", "row 1: l is 24.5; give a whole number above 0"),
        (f"{HEAD}\n{ROW.replace('16,3,1', '2,3,1')}\n", "row 1: top_k 3 is more than experts 2"),
        (
            f"{HEAD}\n{ROW.replace('2e9', '2e8')}\n",
            "row 1: params_active 4e+08 is more than params_total 2e+08",
        ),
        (f"{HEAD},split\n{ROW},train\n", "row 1: split is 'train'; give fit, held_out, extrapolation"),
        ('l,loss\n"1,2\n', "is no CSV file"),
        (b"\xff\xfe", "is not UTF-8 text"),
        ("\n", "is empty"),
        (
            f"{HEAD}\n{ROW}\n".replace(",", ";"),
            "divides its columns by semicolons; write commas, and points in decimals",
        ),
        (f"{HEAD}\n{ROW}\n".replace(",", "\t"), "divides its columns by tabs; write commas"),
    ],
)
def test_a_file_that_is_no_list_of_runs(tmp_path, text, told):
    with pytest.raises(InputError) as caught:
        load_runs(written(tmp_path, text))
    message = str(caught.value)
    assert told in message and "\n" not in message, message


@pytest.mark.parametrize(
    "rows", [3, None, [1], [{"loss": 1}, {"l": 2}], "", b"x", [{"loss": object()}], [{3: 1}]]
)
def test_rows_of_any_type_are_answered(rows):
    with pytest.raises(InputError) as caught:
        fit_law(rows)
    assert "\n" not in str(caught.value)


def test_columns_that_do_not_fit_together():
    with pytest.raises(RunsError, match=r"^runs are columns of one length with loss among them"):
        Runs({"loss": np.ones(3), "l": np.ones(2)})


# Which form, and why. Rows are those that are fitted of 100 runs.
def pick(runs, form=None):
    return choose(runs, form, np.ones(len(runs), dtype=bool))


def test_the_order_of_forms(law_runs, plas_runs):
    plas = plas_runs()
    assert pick(plas) == ("plas", "its terms are separable")
    tokens = np.where(np.arange(len(plas)) % 2, 1e10, 2e10)
    assert pick(Runs(dict(plas.given) | {"tokens": tokens})) == (
        "plas_tokens", "its terms are separable, and tokens vary",
    )  # fmt: skip
    dense = law_runs("gemstones-wdpt")
    assert pick(dense) == ("width_depth", "all models are dense")
    few = Runs({name: column[:20] for name, column in dense.given.items()})
    assert pick(few) == (
        "aspect",
        "few runs: size and tokens with an aspect ratio; "
        + "width_depth is passed over: 9 coefficients ask for 27 rows or more, and 20 are fitted",
    )
    assert pick(law_runs("zhao"))[0] == "comprehensive"
    assert pick(law_runs("zhao"))[1] == "shared experts vary, which PLAS does not read"
    assert pick(law_runs("krajewski"))[0] == "granular"
    assert pick(law_runs("clark-sbase"))[0] == "routed"
    sizes = Runs({name: dense.given[name] for name in ("params_total", "tokens", "loss")})
    assert pick(sizes)[0] == "size_tokens"
    assert "no column experts, so nothing is said of experts" in pick(sizes)[1]


def test_forms_that_cannot_be_fitted(law_runs, plas_runs):
    dense, plas = law_runs("gemstones-wdpt"), plas_runs()
    for runs, form, told in (
        (dense, "plas", "its term of activation needs values that differ, and all 160 rows have 1"),
        (plas, "width_depth", "its term of tokens needs values that differ, and all 170 rows have 1e+10"),
        (plas, "size_tokens", "its term of tokens needs values that differ"),
        (dense, "size", "tokens vary and it has no term in them; take a form that has, or rows of one number of tokens"),
        (Runs({"loss": dense.loss}), "size", "the file has no params_total"),
        (Runs({n: c[:9] for n, c in dense.given.items()}), "width_depth", "9 coefficients ask for 10 rows or more, and 9"),
    ):  # fmt: skip
        with pytest.raises(RunsError) as caught:
            pick(runs, form)
        assert str(caught.value).startswith(f"form {form} cannot be fitted to these runs: {told}")
    with pytest.raises(UnknownNameError, match="did you mean width_depth"):
        pick(dense, "width_depht")
    with pytest.raises(
        RunsError, match=r"^no form can be fitted to these runs: width_depth is passed over: the file"
    ):
        pick(Runs({"loss": dense.loss}))


# Scores, by hand.
def test_scores_by_hand():
    got = scores(np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0]))
    assert (got.rows, got.rmse, got.mape) == (3, pytest.approx(3**-0.5), pytest.approx(1 / 6))
    assert got.r2 == pytest.approx(1 - 1 / (14 / 3))
    assert got.spearman == 1
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1)
    assert np.isnan(spearman(np.array([1.0, 2.0]), np.array([3.0, 3.0])))
    assert scores(np.zeros(0), np.zeros(0)).rows == 0


def test_the_nearest_runs_are_near_in_every_column():
    fit = np.array([[1.0, 1e9], [2.0, 1e9], [1.0, 2e9], [64.0, 1e12], [64.0, 1e12], [64.0, 1e12]])
    losses = np.array([3.0, 2.0, 1.0, 9.0, 9.0, 9.0])
    assert nearest(fit, losses, np.array([[1.0, 1e9], [60.0, 9e11]])).tolist() == [2, 9]
