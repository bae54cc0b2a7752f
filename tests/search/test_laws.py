"""Loss laws: check values with their origin, what each paper says of its law, the box, and the words of refusals."""

import numpy as np
import pytest

from meshwright.hardware.errors import InputError
from meshwright.search.law import check_same_law, law_names, load_law
from meshwright.search.law_columns import Columns, LawError, MissingVariableError
from meshwright.search.law_forms import FORMS, VARIABLES
from meshwright.search.law_precision import correction_names, load_correction
from meshwright.search.shape import Shapes


def loss(name, **columns):
    return float(load_law(name).loss(Columns(**columns)).loss)


def middle(name):
    """One row inside the law's box, wherever a range is known."""
    row = {
        "parameters": 1e9,
        "active_parameters": 4e8,
        "tokens": 20e9,
        "granularity": 4.0,
        "shared_share": 0.3,
    }
    law = load_law(name)
    for variable, allowed in law.box.items():
        if allowed.values:
            row[variable] = allowed.values[0]
        elif allowed.known:
            row[variable] = (allowed.low * allowed.high) ** 0.5 if allowed.low > 0 else allowed.high / 2
    return {v: row[v] for v in {**dict.fromkeys(law.reads), **law.box} if v in row}


def test_what_ships():
    assert law_names() == (
        "abnar", "besiroglu", "clark-sbase", "gemstones-wdpt", "krajewski", "plas-10b", "zhao",
    )  # fmt: skip
    assert correction_names() == ("kumar",)
    for name in law_names():
        law = load_law(name)
        assert (law.name, law.unit) == (name, "nats per token")
        assert "arXiv" in law.source
        assert law.confidence == ("paper" if name in ("plas-10b", "gemstones-wdpt") else "secondary")


# reference/plas.md 1.2, computed from the coefficients of the paper's table 6 (arXiv 2602.10377).
@pytest.mark.parametrize(
    ("layers", "width", "ratio", "rho", "kv_width", "wanted"),
    [
        (24, 896, 4864 / 896, 1, 128, 3.4754),  # the shape of Qwen2.5-0.5B
        (16, 2048, 1, 1 / 16, 256, 3.1157),
        (12, 3072, 0.5, 1 / 16, 512, 3.1069),
        (8, 1024, 4, 1, 1024, 3.7235),
        (32, 3072, 4, 1 / 16, 3072, 2.8794),
        (4, 768, 1, 1, 64, 4.8044),
    ],
)
def test_plas_values(layers, width, ratio, rho, kv_width, wanted):
    got = loss("plas-10b", layers=layers, width=width, ffn_ratio=ratio, activation=rho, kv_width=kv_width)
    assert got == pytest.approx(wanted, abs=5e-4)


# reference/plas.md section 2, column "check": each law evaluated there from the coefficients it prints.
KRAJEWSKI = {"parameters": 3.7e9, "tokens": 33e9}
CHECKS = [
    ("besiroglu", {"parameters": 1.018e9, "tokens": 1.575e9}, 3.0734),
    (
        "gemstones-wdpt",
        {"width": 2048, "layers": 27, "parameters": 1904850944, "tokens": 350.1e9},
        2.5124,
    ),
    ("clark-sbase", {"active_parameters": 1.3e9, "experts": 1, "top_k": 1}, 2.237),
    ("krajewski", KRAJEWSKI | {"granularity": 1, "activation": 1 / 64}, 2.949),
    ("krajewski", KRAJEWSKI | {"granularity": 16, "activation": 1 / 64}, 2.816),
    ("krajewski", KRAJEWSKI | {"granularity": 1, "activation": 1}, 2.717),
    ("abnar", {"parameters": 18.8e9, "tokens": 110.2e9, "activation": 1 - 0.98}, 2.1693),
    ("abnar", {"parameters": 1e9, "tokens": 20e9, "activation": 1}, 2.566),
    ("abnar", {"parameters": 1e9, "tokens": 20e9, "activation": 1 - 0.9}, 2.702),
]


@pytest.mark.parametrize(("name", "columns", "wanted"), CHECKS)
def test_values_of_the_other_laws(name, columns, wanted):
    assert loss(name, **columns) == pytest.approx(wanted, abs=5e-4)


# Measured: mcleish7/gemstone-scaling-laws wandb_df_for_fitting_hot_120b+_only.jsonl, rows at 350,119,526,400 tokens;
# the law's RMSE over its 770 points is 0.0216. besiroglu: one digitised point of reference/plas.md section 2.
@pytest.mark.parametrize(
    ("name", "columns", "measured"),
    [
        ("gemstones-wdpt", {"width": 1024, "layers": 28, "parameters": 543482880}, 2.7034347057),
        ("gemstones-wdpt", {"width": 1280, "layers": 36, "parameters": 1013607680}, 2.58741045),
        ("gemstones-wdpt", {"width": 2048, "layers": 27, "parameters": 1904850944}, 2.5051267147),
        ("gemstones-wdpt", {"width": 2560, "layers": 8, "parameters": 1044032000}, 2.6418628693),
        ("gemstones-wdpt", {"width": 256, "layers": 23, "parameters": 48377600}, 3.3751885891),
        ("besiroglu", {"parameters": 1.018e9, "tokens": 1.575e9}, 3.0714),
    ],
)
def test_measured_losses(name, columns, measured):
    got = loss(name, **({"tokens": 350119526400} | columns))
    assert got == pytest.approx(measured, abs=3 * 0.0216)


# Published statements, each in the source that the law names.
def test_clark_one_expert_is_dense_and_128_make_5m_equal_52m():
    law = load_law("clark-sbase")
    size = np.geomspace(15e6, 1.3e9, 5)
    k = law.coefficients
    dense = 10 ** (
        (k["a"] + k["c"] * np.log10(k["e_start"])) * np.log10(size)
        + k["b"] * np.log10(k["e_start"]) + k["d"]
    )  # fmt: skip
    got = law.loss(Columns(active_parameters=size, experts=1, top_k=1, shared_share=0))
    assert got.loss == pytest.approx(dense)
    assert got.inside.all()
    small = law.loss(Columns(active_parameters=5e6, experts=128, top_k=1, shared_share=0))
    assert float(small.loss) == pytest.approx(
        loss("clark-sbase", active_parameters=51.8e6, experts=1, top_k=1), abs=5e-4
    )
    assert list(small.outside) == ["active_parameters"]


def test_zhao_finds_the_papers_best_granularity_and_shared_share():
    law = load_law("zhao")
    base = {"parameters": 30e9, "active_parameters": 3e9, "tokens": 1e12}
    grain, shared = np.linspace(1, 20, 19001), np.linspace(0, 1, 10001)
    best = law.loss(Columns(granularity=grain, shared_share=0.3, **base)).loss.argmin()
    assert grain[best] == pytest.approx(6.78, abs=0.01)  # the paper: about 7
    best = law.loss(Columns(granularity=7, shared_share=shared, **base)).loss.argmin()
    assert shared[best] == pytest.approx(0.315, abs=0.001)  # the paper: .31


@pytest.mark.parametrize(("size", "share"), [(30e9, 0.401), (671e9, 0.220)])  # the paper: 40% and 22%
def test_zhao_finds_the_papers_best_active_share(size, share):
    part = np.linspace(0.05, 1, 9501)
    got = load_law("zhao").loss(
        Columns(
            parameters=size, active_parameters=part * size, tokens=1e12, granularity=6.78, shared_share=0.315
        )
    )
    assert part[got.loss.argmin()] == pytest.approx(share, abs=0.001)


# Which way a law's loss goes as one variable grows, by the signs of the paper's exponents.
@pytest.mark.parametrize(
    ("name", "falls", "rises"),
    [
        ("plas-10b", ("layers", "ffn_ratio", "kv_width"), ("activation",)),
        ("gemstones-wdpt", ("width", "layers", "parameters", "tokens"), ()),
        ("besiroglu", ("parameters", "tokens"), ()),
        ("clark-sbase", ("active_parameters", "experts"), ()),
        ("krajewski", ("parameters", "tokens", "granularity"), ()),
        ("abnar", ("parameters", "tokens"), ()),
        ("zhao", ("tokens",), ()),
    ],
)
def test_monotone(name, falls, rises):
    law, row = load_law(name), middle(name)
    for variable in (*falls, *rises):
        allowed = law.box[variable]
        low, high = (allowed.low, allowed.high) if allowed.known else (row[variable] / 10, row[variable] * 10)
        step = np.diff(law.loss(Columns(**row | {variable: np.geomspace(low, high, 50)})).loss)
        assert (step < 0).all() if variable in falls else (step > 0).all(), variable


@pytest.mark.parametrize("name", law_names())
def test_terms_join_to_the_loss_and_read_what_they_say(name):
    law, row = load_law(name), middle(name)
    axes = [v for v in VARIABLES if v in law.formula.variables]
    spread = {}
    for i, variable in enumerate(axes):
        shape = [1] * len(axes)
        shape[i] = 2
        spread[variable] = np.array([row[variable], row[variable] * 1.01]).reshape(shape)
    columns = Columns(**row | spread)
    terms = law.terms(columns)
    assert set(terms) == set(law.formula.reads)
    for term, values in terms.items():
        long = {axes[i] for i, size in enumerate(values.shape) if size == 2}
        assert long == set(law.formula.reads[term]), term
    joined = law.formula.joined(terms)
    assert joined == pytest.approx(law.loss(columns).loss)
    assert joined.shape == (2,) * len(axes)
    with pytest.raises(ValueError):  # what was given is not changed under the caller
        law.loss(columns).loss[...] = 0


# Boxes.
@pytest.mark.parametrize("name", [n for n in law_names() if n not in ("abnar", "zhao")])
def test_the_middle_of_a_box_is_inside(name):
    got = load_law(name).loss(Columns(**middle(name)))
    assert (bool(got.inside), got.outside, got.warnings) == (True, {}, ())


def shapes(**changes):
    row = {
        "layers": 16,
        "width": 2048,
        "heads": 16,
        "kv_heads": 2,
        "head_dim": 128,
        "experts": 16,
        "top_k": 1,
        "shared": 0,
    }
    made = {k: np.full(3, v) for k, v in row.items()} | {"ffn_ratio": np.ones(3)}
    return Shapes(**made | {k: np.broadcast_to(v, 3) for k, v in changes.items()})


def test_rows_outside_are_flagged_and_told():
    got = load_law("plas-10b").loss(shapes(width=[2048, 4096, 512], layers=[16, 16, 64]), tokens=10e9)
    assert got.loss.shape == (3,)
    assert got.inside.tolist() == [True, False, False]
    assert {k: v.tolist() for k, v in got.outside.items()} == {
        "layers": [False, False, True],
        "width": [False, True, True],
    }
    assert got.warnings == (
        "plas-10b: layers outside 4 to 32 in 1 of 3 rows (given 16 to 64); the loss there is an extrapolation",
        "plas-10b: width outside 768 to 3072 in 2 of 3 rows (given 512 to 4096); the loss there is an extrapolation",
    )


def test_other_training_tokens_than_those_of_the_fit_are_flagged():
    got = load_law("plas-10b").loss(shapes(), tokens=1e12)
    assert not got.inside.any()
    assert got.warnings == (
        "plas-10b: tokens outside 1e+10 in 1 of 1 rows (given 1e+12); the loss there is an extrapolation",
    )
    assert load_law("plas-10b").loss(shapes()).inside.all()


def test_a_law_without_a_known_range_flags_every_loss():
    got = load_law("zhao").loss(Columns(**middle("zhao")))
    assert not got.inside
    assert got.warnings[0] == "zhao: no range of parameters is known, so every loss is flagged"
    assert set(got.outside) == {"parameters", "active_parameters", "tokens", "granularity"}


def test_routing_to_two_experts_leaves_clark():
    got = load_law("clark-sbase").loss(Columns.of(shapes(top_k=[1, 2, 1]), active_parameters=1e8))
    assert got.inside.tolist() == [True, False, True]


def test_no_rows():
    got = load_law("plas-10b").loss(shapes()[np.zeros(3, dtype=bool)])
    assert (got.loss.shape, got.inside.shape, got.warnings) == ((0,), (0,), ())


def test_what_the_authors_kept_fixed_is_held_against_shapes():
    """Shared experts, an expansion or a K that no term reads: priced, and told."""
    got = load_law("plas-10b").loss(shapes(shared=[0, 1, 0], top_k=[1, 1, 4], experts=[16, 16, 16]))
    assert got.inside.tolist() == [True, False, False]
    assert set(got.outside) == {"shared_share", "top_k"}
    assert got.warnings[-1] == (
        "plas-10b: shared_share outside 0 in 1 of 3 rows (given 0 to 0.5); the loss there is an extrapolation"
    )
    alone = load_law("besiroglu").loss(Columns(parameters=1e9, tokens=20e9))
    assert not alone.inside
    assert alone.warnings[0] == (
        "besiroglu: activation is not given, and the law was fitted at 1, so every loss is flagged"
    )


# Precision.
def test_kumar_keeps_the_papers_shares():
    kumar = load_correction("kumar")
    bits = np.array([16, 8, 6, 4, 3, 2])  # reference/plas.md section 2: weights alone
    wanted = [0.9975, 0.9498, 0.8939, 0.7759, 0.6743, 0.5266]
    assert kumar.kept(weights=bits) == pytest.approx(wanted, abs=5e-4)
    assert kumar.kept() == 1
    both = kumar.kept(weights=8) * kumar.kept(activations=8)
    assert kumar.kept(weights=8, activations=8) == pytest.approx(both)
    added = kumar.added_after_training(1e9, 1e11, np.array([4, 3]))
    assert added == pytest.approx([0.021, 0.112], abs=5e-4)


def test_a_correction_is_laid_over_a_law():
    law, kumar = load_law("besiroglu"), load_correction("kumar")
    plain = Columns(**middle("besiroglu") | {"parameters": 1e9, "tokens": 20e9})
    got = law.loss(kumar.on(plain, weights=np.array([16, 4, 1])))
    assert got.loss == pytest.approx(
        law.loss(Columns(parameters=1e9 * kumar.kept(np.array([16, 4, 1])), tokens=20e9)).loss
    )
    assert got.inside.tolist() == [True, True, False]
    assert got.warnings == (
        "kumar: bits outside 3 to 16 in 1 of 3 rows (given 1 to 16); the loss there is an extrapolation",
    )
    far = load_law("clark-sbase").loss(
        kumar.on(Columns(active_parameters=1e9, experts=8, top_k=1, shared_share=0), weights=8)
    )
    assert list(far.outside) == ["tokens"]  # clark's 130e9 against kumar's 26e9


def test_a_correction_refuses():
    kumar = load_correction("kumar")
    with pytest.raises(
        LawError, match=r"^kumar needs bits of weights, activations or kv; give at least one$"
    ):
        kumar.on(Columns())
    with pytest.raises(LawError, match=r"^these columns are corrected for precision already, by kumar$"):
        kumar.on(kumar.on(Columns(), weights=8), kv=8)
    with pytest.raises(LawError, match=r"^bits of a number must be finite and above 0$"):
        kumar.kept(weights=0)
    with pytest.raises(
        LawError, match=r"^law plas-10b reads no number of parameters, so kumar cannot correct it"
    ):
        load_law("plas-10b").loss(kumar.on(Columns.of(shapes()), weights=8))


# Refusals.
def test_two_laws_are_not_compared():
    plas, columns = load_law("plas-10b").loss(shapes()), Columns(parameters=1e9, tokens=20e9)
    law = load_law("besiroglu")
    check_same_law()
    check_same_law(plas, load_law("plas-10b").loss(shapes(layers=[4, 8, 12])))
    with pytest.raises(
        LawError,
        match=r"^losses of plas-10b and besiroglu cannot be compared: their data, tokenizers and floors differ; "
        "price every row by one law$",
    ):
        check_same_law(plas, law.loss(columns))
    changed = law.model_copy(update={"coefficients": dict(law.coefficients) | {"A": 1.0}})
    with pytest.raises(LawError, match=r"^losses of besiroglu and another file named besiroglu cannot"):
        check_same_law(law.loss(columns), changed.loss(columns))
    kumar = load_correction("kumar")
    check_same_law(law.loss(kumar.on(columns, weights=8)), law.loss(kumar.on(columns, weights=4)))
    with pytest.raises(
        LawError, match=r"^losses of besiroglu with and without the precision correction kumar cannot"
    ):
        check_same_law(law.loss(columns), law.loss(kumar.on(columns, weights=8)))


@pytest.mark.parametrize("name", law_names())
def test_every_variable_is_asked_for_by_name(name):
    law, row = load_law(name), middle(name)
    for variable in law.reads:
        with pytest.raises(MissingVariableError) as caught:
            law.loss(Columns(**{k: v for k, v in row.items() if k != variable}))
        assert caught.value.variables == (variable,)
        assert isinstance(caught.value, InputError)


def test_the_words_of_a_missing_variable():
    with pytest.raises(MissingVariableError) as caught:
        load_law("zhao").loss(Columns.of(shapes(), parameters=1e9, active_parameters=1e8))
    assert str(caught.value) == (
        "law zhao needs granularity (how finely experts are cut, as the law's paper counts it), tokens (training "
        "tokens); give granularity and tokens, or choose another law"
    )


def test_values_that_are_no_sizes():
    law = load_law("besiroglu")
    with pytest.raises(LawError, match=r"^parameters is 0 in a row; give finite numbers above 0$"):
        law.loss(Columns(parameters=np.array([1e9, 0]), tokens=1e9))
    with pytest.raises(LawError, match=r"^tokens is nan in a row; give finite numbers above 0$"):
        law.loss(Columns(parameters=1e9), tokens=float("nan"))
    with pytest.raises(LawError, match=r"^tokens stand in the columns already; give them once$"):
        law.loss(Columns(parameters=1e9, tokens=1e9), tokens=1e9)
    with pytest.raises(LawError, match=r"^rows is 3; give Shapes or Columns$"):
        law.loss(3)


def test_every_form_has_a_law_or_is_for_fits_and_names_known_variables():
    assert set(FORMS) - {load_law(name).form for name in law_names()} == {"size", "aspect", "plas_tokens"}
    assert all(set(form.variables) <= set(VARIABLES) for form in FORMS.values())
