"""`meshwright count`: the book's figures on its pages, the same as JSON, and options that are asked in vain refused."""

import json
from typing import Any

import pytest

from meshwright.optimizer.cli import main

LLAMA = "D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256"


def ask(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    assert main(["count", *words.split(), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {name: step["value"] for name, step in answer["steps"].items()}


@pytest.mark.parametrize(
    ("words", "step", "value"),
    [
        # chapter 4, question 1: 17.4e9 recomputed; question 5: 2D
        ("--shape D=4096,F=16384,L=64,N=16,K=16,H=256,V=32000", "params_book", 17442013184),
        ("--shape D=4096,F=16384,L=64,N=16,K=16,H=256,V=32000", "crossover_projections", 8192),
        # chapter 4: attention equals the products at 8D
        (f"--shape {LLAMA}", "crossover_rule", 65536),
        # chapter 6, question 2: 405.8e9 and 3.65e25 for 15e12 tokens
        ("llama-3.1-405b --tokens 15T", "params_book", 405849243648),
        ("llama-3.1-405b --tokens 15T", "run_flops_rule", pytest.approx(3.6526e25, rel=5e-4)),
        # chapter 8: 163,840 B per token in int8
        ("llama-3-70b --kv --dtype int8 --seq 32Ki --batch 240seq", "bytes_per_token", 163840),
        ("llama-3-70b --kv --dtype int8 --seq 32Ki --batch 240seq", "bytes_of_batch", 240 * 32768 * 163840),
        # chapter 4: 2 D L tokens where the blocks' inputs are saved
        ("llama-3-70b --activations --batch 4Mi", "least", 2 * 8192 * 80 * 4 * 2**20),
        ("llama-3-70b --activations --batch 4Mi", "book_everything_repeated", pytest.approx(4 / 3)),
        # chapter 5: 9.6e9 parameters on a v5p
        ("llama-3-70b --state --chip v5p --profile book", "book_most_params", 9.6e9),
        # chapter 4, question 8: 120 E/k tokens on v5e, 120.1 unrounded
        ("deepseek-v3 --critical-batch --chip v5e --profile book --weights int8", "experts", pytest.approx(32 * 197e12 / 8.2e11 / 2)),
        # chapter 4, question 7: 21.7% with 37e9 active parameters, 22.0% with the file's 37.55e9
        ("deepseek-v3 --mfu --tokens 14.8T --chip-hours 2788K --peak 1513TFLOP/s", "mfu_rule", pytest.approx(0.22, rel=2e-3)),
    ],
)  # fmt: skip
def test_figures_of_the_book(capsys: pytest.CaptureFixture[str], words: str, step: str, value: float) -> None:
    assert ask(capsys, words)[step] == value


@pytest.mark.parametrize(
    "words",
    ["llama-3-70b", "deepseek-v3 --kv", "gpt2 --activations", "llama-3-8b --state --chip h100",
     "mixtral-8x7b --critical-batch --chip h100", "llama-3-8b --mfu --tokens 15T --chip-hours 1.3M --chip h100"],
)  # fmt: skip
def test_each_page_is_one_screen_and_says_what_binds(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert main(["count", *words.split()]) == 0
    page = capsys.readouterr().out
    assert page.count("\n") <= 50
    assert "\nwhat binds\n" in page
    assert all(len(line) <= 110 for line in page.splitlines())


def test_a_profile_changes_the_figures_of_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    vendor = ask(capsys, "llama-3-70b --critical-batch --chip v5e")
    book = ask(capsys, "llama-3-70b --critical-batch --chip v5e --profile book")
    assert vendor["dense"] != book["dense"] == pytest.approx(197e12 / 8.2e11)


def test_a_chip_or_its_peak_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    run = "llama-3-8b --mfu --tokens 15T --chip-hours 1.3M"
    by_chip = ask(capsys, f"{run} --chip tpu7x --profile book")
    assert by_chip == ask(capsys, f"{run} --peak 2300TFLOP/s")  # of both devices of the chip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give a model: either its name or file, or --shape with its letters"),
        (f"llama-3-8b --shape {LLAMA}", "a model by name (llama-3-8b) and --shape are two models; keep one"),
        ("--shape D=8192", "a shape needs F (feed-forward width, of one expert where there are experts), L"),
        ("--shape D=8192,B=3", "unknown letter 'B'; known: D, E, F"),
        ("llama-3-8b --chip v5e", "--chip changes nothing in this count; leave it out, or ask with --state or"),
        ("llama-3-8b --kv --weights int8", "--weights changes nothing in this count; leave it out, or ask with"),
        ("llama-3-8b --kv --activations", "argument --activations: not allowed with argument --kv"),
        ("llama-3-8b --kv --dtype int3", "unknown dtype 'int3'"),
        ("llama-3-8b --kv --batch 100", "a batch of 100 tokens is not a whole number of sequences of 4096"),
        ("llama-3-8b --kv --batch 4Mi~5%", "--batch 4Mi~5%: a tolerance means nothing in a count; leave out ~"),
        ("llama-3-8b --state --optimizer lion", "unknown optimizer 'lion'; known: adamw, adamw8bit, sgd"),
        ("llama-3-8b --critical-batch", "this count needs --chip, such as --chip v5p"),
        ("llama-3-8b --critical-batch --chip v5p --dtype fp4", "no source lists a peak in fp4 for v5p; it has"),
        ("llama-3-8b --state --profile book", "--profile chooses the figures of --chip; give --chip, or leave"),
        ("llama-3-8b --mfu --tokens 1T", "--mfu needs --tokens and --chip-hours of the run"),
        (
            "llama-3-8b --mfu --tokens 1T --chip-hours 9K --chip v5p --peak 459TFLOP/s",
            "--peak and --chip both say the peak of one chip; keep one",
        ),
        ("llama-3-8b --mfu --tokens 1T --chip-hours 9K", "--mfu needs the peak of one chip: either --peak"),
        ("llama-3-8b --mfu --tokens 1T --chip-hours 9K --peak 1", "--peak: '1' has no unit; write a peak like"),
        ("llama-3-8b --mfu --tokens 1T --chip-hours 9K --peak 1TFLOP/s --dtype fp8", "--dtype chooses among the"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert main(["count", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"meshwright: {message}")
