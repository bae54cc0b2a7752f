"""`meshwright decode` and `prefill`: what they print, what they refuse, and the book's questions on serving."""

import json
from typing import Any

import pytest

from meshwright.optimizer.cli import main

Capture = pytest.CaptureFixture[str]
LLAMA = "llama-3-70b --profile book --weights int8"
GENERATE = "--decode-cluster v5e:2x4 --batch 32 --decode-tokens 512 --context 8192"
MIXTURE = "--shape D=4096,F=16384,L=64,N=32,K=8,H=256,V=32128,E=16,k=2,tied=yes"


def run(capsys: Capture, line: str) -> tuple[int, str, str]:
    code = main(line.split())
    return code, *capsys.readouterr()


def steps_of(capsys: Capture, line: str) -> dict[str, Any]:
    """Names and values of the steps, and the table."""
    code, out, err = run(capsys, f"{line} --json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    return {name: step["value"] for name, step in data["steps"].items()} | {"table": data["table"]}


# What the answer to a question of the book is in the output of a command. The book counts 70e9 parameters and, once,
# 160 kB of cache per token where there are 163,840 B; its figures are met that closely.
ANSWERS = [
    ("decode --params 30B --kv-per-token 100kB --cluster v5e:4x4 --profile book --batch 256 --context 8192 --weights int8",
     {"t_step": 0.021, "fits": True, "critical_batch": 120}),
    ("decode --params 200B --cluster v4:2x4x4 --profile book", {"t_load": 0.0104}),
    (f"decode {LLAMA} --cluster v5e:2x4 --batch 32 --context 8192 --decode-tokens 512 --prompt-tokens 8192",
     {"t_step": 0.017, "throughput": 1882, "throughput_per_chip": 235, "tokens_per_step": 544}),
    (f"decode {LLAMA} --cluster v5e:4x4 --batch 32 --context 8192",
     {"t_step": 0.0085, "t_floor": 0.0055, "max_batch": 138, "slice": "2x4", "usd_per_million_tokens": 1.42}),
    (f"decode {LLAMA} --cluster v5e:4x8 --batch 64 --context 8192 --sharding",
     {"ways_throughput_if_rings": 26, "ways_throughput": 13, "kv_head_shards": 8, "kv_batch_shards": 4}),
    (f"decode {MIXTURE} --cluster v5e:8x16 --profile book --weights int8 --context 8192",
     {"param_bytes": 212e9, "t_load": 0.0020, "slice": "4x4", "kv_bytes_per_token": 262144,
      "critical_batch": 813, "critical_batch_experts": 960}),
    (f"prefill {LLAMA} --cluster v5e:4x4 --tokens 8192 --mfu 0.4 {GENERATE}",
     {"t": 0.91, "prefill_per_generate": 3.3, "t_decode": 8.8}),
    ("prefill --params 70B --cluster v5e:4x4 --profile book --weights int8 --tokens 8192 --mfu 0.4", {"t": 0.91}),
    ("prefill llama-3-8b --cluster v5e:4x4 --tokens 3 --cached 2", {"compute_fraction": 1 / 3, "compute_bound": False}),
    ("decode llama-3-8b --cluster v5e:4x4 --profile book --weights int8 --batch 240 --context 8192",
     {"param_bytes": 8.03e9, "kv_bytes": 128849018880, "slice": "4x4", "kv_bytes_per_token": 65536}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "wanted"), ANSWERS, ids=[f"{line.split()[0]} {n}" for n, (line, _) in enumerate(ANSWERS)]
)
def test_the_command_answers_the_book(capsys: Capture, line: str, wanted: dict[str, Any]) -> None:
    found = steps_of(capsys, line)
    for name, value in wanted.items():
        assert found[name] == (pytest.approx(value, rel=0.03) if isinstance(value, float | int) else value), (
            name
        )


def test_slices_against_each_other(capsys: Capture) -> None:
    """Chapter 8: in int8 a 4x2 is the smallest, and twice of it serves more queries per chip."""
    rows = steps_of(capsys, f"decode {LLAMA} --cluster v5e:4x4 --context 8192 --slices --decode-tokens 512")[
        "table"
    ]
    assert [row["slice"] for row in rows[:2]] == ["2x4", "4x4"]
    assert rows[0]["qps_per_chip"] == pytest.approx(0.55, rel=0.04) and rows[1]["qps_per_chip"] > 0.8


def test_a_long_table_is_thinned_and_whole_in_json(capsys: Capture) -> None:
    line = "decode falcon-40b --cluster v5p:8x8x16 --context 2048 --slices"
    rows = steps_of(capsys, line)["table"]
    code, out, _ = run(capsys, line)
    assert code == 0 and len(out.splitlines()) <= 60 < len(rows)
    assert f"{len(rows) - 30} of {len(rows)} rows are left out; --json has all" in out
    printed = [row for row in rows if f"\n  {row['slice']} " in out]
    assert len(printed) == 30 and printed[0] == rows[0] and printed[-1] == rows[-1]


def test_what_is_missing_is_said(capsys: Capture) -> None:
    """131.4 GiB of weights and 2.5 of cache on 63 GiB."""
    line = "decode llama-3-70b --cluster v5e:2x2 --context 8192"
    found, (_, out, _) = steps_of(capsys, line), run(capsys, line)
    assert found["free_hbm"] == 0 and found["missing_bytes"] / 2**30 == pytest.approx(70.92, abs=0.01)
    assert "-" not in next(row for row in out.splitlines() if "free_hbm" in row).split("=")[0]
    assert "missing_bytes" not in steps_of(capsys, "decode llama-3-70b --cluster v5e:4x4 --context 8192")


def test_a_latency_limit(capsys: Capture) -> None:
    """Chapter 8: LLaMA 405B in int8 within 15 ms needs an 8x8."""
    line = "decode llama-3.1-405b --cluster v5e:8x8 --profile book --weights int8 --context 8192 --slices --limit 15ms"
    rows = {row["slice"]: row["batch_in_time"] for row in steps_of(capsys, line)["table"]}
    assert rows["4x8"] == 0 and rows["8x8"] > 0


LONG_PAGES = [
    f"decode {LLAMA} --cluster v5e:4x4 --context 8192 --sweep",
    "decode mixtral-8x7b --cluster tpu7x:4x4x4 --context 8192 --batch 64 --decode-tokens 512 --prompt-tokens 1000",
    "decode deepseek-v3 --cluster h200:8x2 --weights fp8 --context 8192 --batch 64 --decode-tokens 512 --prompt-tokens 9",
    "decode llama-3-70b --cluster v5e:2x2 --context 8192 --batch 64 --decode-tokens 512 --prompt-tokens 1000",
    "decode mixtral-8x7b --cluster tpu7x:4x4x4 --context 8192 --batch 64 --sharding",
    "prefill deepseek-v3 --cluster h200:8x2 --weights fp8 --tokens 8192 --cached 9 --batch 32 --decode-tokens 512",
]


@pytest.mark.parametrize("line", [line for line, _ in ANSWERS] + LONG_PAGES)
def test_a_page_is_one_screen(capsys: Capture, line: str) -> None:
    code, out, err = run(capsys, line)
    assert (code, err) == (0, "")
    assert "\nanswer\n" in out and "what binds" in out
    assert len(out.splitlines()) <= 60 and max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("decode llama-3-8b --cluster v5e:4x4", "say how long sequences are: --context 8192"),
        ("decode --cluster v5e:4x4 --context 8", "give a model: either its name or file, or --shape with its letters"),
        ("decode llama-3-8b --params 8B --cluster v5e:4x4", "--params stands for a model; leave out MODEL and --shape, or --params"),
        ("decode llama-3-8b --kv-per-token 1kB --context 8 --cluster v5e:4x4",
         "--kv-per-token goes with --params; a model's cache follows from its layers"),
        ("decode --params 8B --kv-per-token 1kB --cluster v5e:4x4",
         "the cache of a sequence needs both --context and --kv-per-token; give both, or neither"),
        ("decode --params 8B --sweep --cluster v5e:4x4", "--params answers what one step takes; for more give a MODEL or --shape"),
        ("decode --params 8B --kv-per-token 100 --context 8 --cluster v5e:4x4",
         "--kv-per-token: '100' has no unit; write a size like '80 GiB' or '141 GB'"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 8 --sweep --decode-tokens 5",
         "--decode-tokens changes nothing in --sweep; leave it out, or ask with --slices or without --sweep"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 8 --limit 5ms",
         "--limit changes nothing in one step; leave it out, or ask with --sweep or with --slices"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 8 --sweep --limit 5",
         "--limit: '5' has no unit; write a time like '1 us', '2 ms' or '30 d'"),
        ("decode llama-3-8b --cluster v5e:1x1 --context 8 --sharding", "v5e:1x1 is one device and nothing is cut; give a larger one"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 8 --weights int3", "unknown dtype 'int3'; did you mean int8 or int4 or tf32?"),
        ("decode llama-3-8b --cluster h100:8x1 --context 8 --compute int4",
         "no source lists a peak in int4 for h100; it has fp32, tf32, bf16, fp16, fp8, int8"),
        ("prefill llama-3-8b --cluster v5e:4x4 --tokens 8192 --decode-tokens 512 --batch 32 --context 100",
         "a context of 100 tokens does not hold a prompt of 8,192; give at least 8,192"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 100 --decode-tokens 5 --prompt-tokens 101",
         "a context of 100 tokens does not hold a prompt of 101; give at least 101"),
        ("decode llama-3-8b --cluster v5e:4x4 --context 100 --prompt-tokens 10",
         "prompt tokens say what ended queries leave behind; give decode tokens too"),
        ("prefill llama-3-8b --params 8B --cluster v5e:4x4 --tokens 8",
         "--params stands for a model; leave out MODEL and --shape, or --params"),
        ("prefill --params 8B --cluster v5e:4x4 --tokens 8 --batch 4 --decode-tokens 4",
         "--params answers how long a prompt takes; for more give a MODEL or --shape"),
        ("prefill llama-3-8b --cluster v5e:4x4 --tokens 8 --cached 8",
         "a cached prefix of 8 leaves nothing of a prompt of 8 tokens; at most 7"),
        ("prefill llama-3-8b --cluster v5e:4x4 --tokens 8 --mfu 40", "mfu 40.0 is not above 0 and at most 1; write 0.4 for 40%"),
        ("prefill llama-3-8b --cluster v5e:4x4 --tokens 8 --batch 4",
         "a generate server needs both --batch and --decode-tokens; give both, or neither"),
        ("prefill llama-3-8b --cluster v5e:4x4 --tokens 8 --context 4",
         "--context and --decode-cluster are of a generate server; give --batch and --decode-tokens"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(capsys: Capture, line: str, text: str) -> None:
    assert run(capsys, line) == (2, "", f"meshwright: {text}\n")
