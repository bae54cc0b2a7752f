"""Edge boards and consumer devices: figures as sourced, a cluster of one, and what is refused."""

import pytest

from meshwright.costmodel.roofline.ceilings import source_rate
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.catalog import boards, chips
from meshwright.hardware.chip import Chip, is_chip, load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, InputError, MissingFigureError
from meshwright.hardware.figures import Figure, Strict
from meshwright.hardware.inventory import wires
from meshwright.optimizer.cli import main

ORIN = "jetson-agx-orin-64gb"
PRODUCT = "fp16[1,4096] x fp16[4096,14336]"


def figures(part: object) -> list[Figure]:
    if isinstance(part, Figure):
        return [part]
    if isinstance(part, Strict):
        return [f for name in type(part).model_fields for f in figures(getattr(part, name))]
    return [f for value in part.values() for f in figures(value)] if isinstance(part, dict) else []


def test_boards_are_a_group_of_their_own() -> None:
    assert len(boards()) == 24 and not set(boards()) & set(chips())
    assert {ORIN, "jetson-agx-thor-128gb", "gb10", "rtx-4090", "rtx-5090", "apple-m4-max"} <= set(boards())
    # Of these no source gives the bandwidth or the memory.
    assert not any(
        map(is_chip, ("jetson-orin-nx-16gb", "jetson-t4000", "snapdragon-8-elite", "raspberry-pi-5"))
    )


def test_no_name_means_two_chips() -> None:
    names = [name for known in (*boards(), *chips()) for name in (known, *load_chip(known).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", boards())
def test_every_figure_has_a_source_and_halves_say_so(name: str) -> None:
    board = load_chip(name)
    assert board.name == name and board.is_board and board.devices_per_chip == 1
    found = figures(board)
    assert len(found) >= 2
    for figure in found:
        assert figure.source and figure.si > 0
        assert figure.confidence != "derived" or figure.note
    assert board.memory_warning is not None  # what driver and system leave is known of none


# jetson-agx-orin: 171 sparse int8 TOP/s of the GPU (NVIDIA/Deep-Learning-Accelerator-SW), halved; fp16 half of that.
# rtx-4090: Ada whitepaper v2.1, appendix A, FP32 accumulate. Thor: 2070 and 1035 sparse (RidgeRun), halved. GB10: 1000
# sparse fp4. apple: philipturner/metal-benchmarks, GPU shader cores. Bandwidths: as their files say.
@pytest.mark.parametrize(
    ("name", "bandwidth", "memory", "peaks"),
    [
        (ORIN, 204.8e9, 64e9, {"fp16": 42.75e12, "int8": 85.5e12}),
        ("jetson-orin-nano-8gb", 68e9, 8e9, {"fp16": 10e12, "int8": 20e12}),
        ("jetson-orin-nano-super-8gb", 102e9, 8e9, {"fp16": 16.75e12, "int8": 33.5e12}),
        (
            "jetson-agx-thor-128gb", 273e9, 128e9,
            {"bf16": 258.75e12, "fp16": 258.75e12, "fp8": 517.5e12, "fp4": 1035e12},
        ),
        ("gb10", 273e9, 128e9, {"fp32": 31e12, "bf16": 125e12, "fp8": 250e12, "fp4": 500e12}),
        (
            "rtx-4090", 1008e9, 24e9,
            {"fp32": 82.58e12, "tf32": 82.58e12, "bf16": 165.2e12, "fp16": 165.2e12, "fp8": 330.3e12, "int8": 660.6e12},
        ),
        ("rtx-5090", 1792e9, 32e9, {"fp32": 104.8e12, "bf16": 209.5e12, "fp8": 419e12, "fp4": 1676e12}),
        ("apple-m1-max", 409.6e9, 64e9, {"fp32": 10.617e12, "fp16": 10.617e12}),
        ("jetson-agx-orin-32gb", 204.8e9, 32e9, {}),
        ("apple-m3-ultra", 819.2e9, 512e9, {}),
    ],
)  # fmt: skip
def test_golden_figures(name: str, bandwidth: float, memory: int, peaks: dict[str, float]) -> None:
    board = load_chip(name)
    assert (board.hbm_bytes_per_s, board.memory_bytes) == (bandwidth, memory)
    assert {dtype: board.peak_flop_per_s(dtype) for dtype in board.peak} == peaks


@pytest.mark.parametrize("name", boards())
def test_no_peak_is_a_sparse_headline(name: str) -> None:
    """A dtype of half the width is at most twice as fast, int8 of a 4090 apart (four times, whitepaper)."""
    peak = {dtype: figure.si for dtype, figure in load_chip(name).peak.items()}
    wide = peak.get("bf16", peak.get("fp16"))
    for dtype, most in (("fp8", 2), ("int8", 4 if name == "rtx-4090" else 2)):
        assert dtype not in peak or (wide is not None and peak[dtype] <= most * wide)
    assert "fp4" not in peak or peak["fp4"] <= 4.001 * peak["fp8"] / (1 if name == "rtx-5090" else 2)


def test_a_missing_peak_is_never_guessed() -> None:
    with pytest.raises(
        MissingFigureError, match=f"no source lists a peak in bf16 for {ORIN}; it has fp16, int8; fp16 is"
    ):
        load_chip(ORIN).peak_flop_per_s("bf16")
    with pytest.raises(MissingFigureError, match=r"for apple-m3-ultra; only its memory is known$"):
        load_chip("apple-m3-ultra").peak_flop_per_s("bf16")


@pytest.mark.parametrize("name", boards())
def test_a_board_is_a_cluster_of_one(name: str) -> None:
    cluster = parse_cluster(name)
    assert (cluster.name, cluster.devices, cluster.chips, cluster.shape) == (name, 1, 1, (1, 1))
    assert [level.size for level in cluster.levels] == [1]
    assert wires(cluster) == () and cluster.fabric_note == "a board: one chip without a network"
    assert set(load_chip(name).sources()) == set(cluster.sources)


def test_aliases_case_and_profiles_name_the_same_board() -> None:
    for text in (ORIN, ORIN.upper(), " jetson_agx_orin_64gb ", "jetson-agx-orin"):
        assert parse_cluster(text).name == ORIN
    assert parse_cluster("nvidia-gb10").name == parse_cluster("dgx-spark").name == "gb10"
    assert parse_cluster("RTX 4090").chip == parse_cluster("rtx-4090", profile="book").chip


@pytest.mark.parametrize(
    "text",
    [
        f"{ORIN}:2",
        f"{ORIN}:1",
        f"{ORIN}:8x2",
        f"{ORIN}x2",
        f"{ORIN} x2",
        f"{ORIN}-2",
        f"{ORIN}*2",
        f"{ORIN}@ib400",
    ],
)
def test_boards_are_single(text: str) -> None:
    with pytest.raises(ClusterError) as refused:
        parse_cluster(text)
    assert str(refused.value) == (
        f"cluster {text!r} asks for more than a board: boards are single, one chip without a network, and take no "
        f"shape, no '*slices' and no '@fabric'; write {ORIN}"
    )


def test_a_fabric_given_apart_is_refused_too() -> None:
    with pytest.raises(ClusterError, match="boards are single"):
        parse_cluster(ORIN, fabric="ib400")


@pytest.mark.parametrize("place", ["network", "dcn"])
def test_a_board_has_no_links(place: str) -> None:
    with pytest.raises(MissingFigureError, match=f"{ORIN} is a board: no network joins it to another chip"):
        source_rate(load_chip(ORIN), place)


def test_efficiencies_of_boards_are_told_to_be_priors() -> None:
    made = load_efficiency("default", load_chip("rtx-4090"))
    assert "default: no entry for ada; the prior of family nvidia is used" in made.notes
    assert load_efficiency("book", load_chip("gb10")).name == "book"
    with pytest.raises(InputError, match=r"efficiency default gives no matmul.* for apple-m1"):
        load_efficiency("default", load_chip("apple-m1"))


def test_a_board_survives_the_way_through_json() -> None:
    assert Chip.model_validate(load_chip(ORIN).model_dump(mode="json")) == load_chip(ORIN)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["roofline", "matmul", PRODUCT, "--chip", ORIN], "memory binds, 209 times as long as compute"),
        (
            [
                "decode",
                "llama-3-8b",
                "--cluster",
                ORIN,
                "--context",
                "1024",
                "--weights",
                "int8",
                "--compute",
                "fp16",
            ],
            "39.54 ms",  # (8.03 GB of weights + 67 MB of cache) / 204.8 GB/s
        ),
        (["inventory", ORIN], "a board: one chip without a network"),
        (
            [
                "estimate",
                "qwen2-0.5b",
                "--cluster",
                "gb10",
                "--batch",
                "8seq",
                "--seq",
                "512",
                "--layout",
                "tp=1",
            ],
            "gb10",
        ),
        (["recommend", "qwen2-0.5b", "--cluster", "rtx-4090", "--batch", "8seq", "--seq", "512"], "OPTIMAL"),
    ],
)
def test_questions_about_a_board_are_answered(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert says in out
    assert len(out.splitlines()) <= (70 if arguments[0] == "recommend" else 50)  # one screen


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["decode", "llama-3-8b", "--cluster", ORIN, "--context", "1024"],
            "no source lists a peak in bf16 for " + ORIN,
        ),
        (
            ["recommend", "qwen2-0.5b", "--cluster", ORIN, "--batch", "8seq", "--seq", "512"],
            "no source lists a peak in bf16",
        ),
        (["decode", "llama-3-8b", "--cluster", f"{ORIN}:2", "--context", "1024"], "boards are single"),
        (
            [
                "estimate",
                "qwen2-0.5b",
                "--cluster",
                "gb10",
                "--batch",
                "8seq",
                "--seq",
                "512",
                "--layout",
                "tp=2",
            ],
            "has 1",
        ),
        (["roofline", "matmul", PRODUCT, "--chip", ORIN, "--from", "network"], "is a board"),
        (["fabric", "gb10"], "gb10 is a board: one chip without a network"),
    ],
)
def test_questions_that_a_board_cannot_answer(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_pages_list_boards_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chips"]) == 0
    together, alone = capsys.readouterr().out.split("Boards: edge boards and consumer devices")
    assert "h100" in together and ORIN not in together and ORIN in alone
    assert main(["clusters"]) == 0
    listed = capsys.readouterr().out.split("Boards   each a cluster of one")[1]
    assert ORIN in listed.split("Fabrics")[0]
    assert main(["chips", "gb10"]) == 0
    assert "Chips, per device" not in capsys.readouterr().out
