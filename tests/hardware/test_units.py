"""Units at the edge: what is read, what is refused and with which words."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from meshwright.hardware.errors import UnitError
from meshwright.hardware.units import (
    Bytes,
    human_bytes,
    human_count,
    human_rate,
    human_seconds,
    parse_bytes,
    parse_bytes_per_s,
    parse_count,
    parse_flop_per_s,
    parse_params_per_s,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text", "si"),
    [
        (parse_bytes, "80 GiB", 80 * 2**30),
        (parse_bytes, "80GB", 80 * 10**9),
        (parse_bytes, "2TB", 2 * 10**12),
        (parse_bytes, "512 B", 512),
        (parse_bytes, "0.1 GB", 10**8),  # exact: decimal arithmetic, not binary floats
        (parse_bytes, "95.74 GiB", 102_800_042_230),  # the fact base's own conversion
        (parse_bytes, "183359 MiB", 192_265_846_784),
        (parse_bytes, "1e3 kB", 10**6),
        (parse_bytes_per_s, "450 GB/s", 450e9),
        (parse_bytes_per_s, "400 Gbit/s", 50e9),
        (parse_bytes_per_s, "400Gbps", 50e9),
        (parse_bytes_per_s, "2575 GiB/s", 2575 * 2**30),
        (parse_flop_per_s, "989 TFLOP/s", 989e12),
        (parse_flop_per_s, "393 TOP/s", 393e12),
        (parse_params_per_s, "3 Gparam/s", 3e9),
        (parse_seconds, "1 us", 1e-6),
        (parse_seconds, "2ms", 2e-3),
        (parse_seconds, "30d", 30 * 86400.0),
        (parse_seconds, "1.5 h", 5400.0),
        (parse_seconds, "0 s", 0.0),
        (parse_count, "15T", 15 * 10**12),
        (parse_count, "70B", 70 * 10**9),
        (parse_count, "4Mi", 4 * 2**20),
        (parse_count, "4M", 4_000_000),
        (parse_count, "1.5M", 1_500_000),
        (parse_count, "4_194_304", 4 * 2**20),
        (parse_count, 128, 128),
        (parse_count, "128", 128),
    ],
)
def test_reads(parse, text, si):
    assert parse(text) == si


@pytest.mark.parametrize(
    ("parse", "given_", "message"),
    [
        (parse_bytes, 80, "80 has no unit; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, "80", "'80' has no unit; write a size like '80 GiB' or '141 GB'"),
        (
            parse_bytes,
            "80 gb",
            "unknown unit 'gb' in '80 gb' (is it GB?); write a size like '80 GiB' or '141 GB'",
        ),
        (parse_bytes, "-1 GB", "'-1 GB' is not above zero; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, "0 GB", "'0 GB' is not above zero; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, "0.1 B", "'0.1 B' is less than one byte; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, "nan GB", "cannot read 'nan GB'; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, "inf GB", "cannot read 'inf GB'; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, None, "cannot read None; write a size like '80 GiB' or '141 GB'"),
        (parse_bytes, True, "cannot read True; write a size like '80 GiB' or '141 GB'"),
        (
            parse_bytes,
            "9999 EB",
            "'9999 EB' is beyond any machine: a size is at most 1e+21 in SI units; write it like '80 GiB' or '141 GB'",
        ),
        (
            parse_count,
            10**30,
            (
                "'1000000000000000000000000000000' is beyond any machine: a count is at most 1e+18; write it like "
                "'4Mi', '15T' or a whole number"
            ),
        ),
        (
            parse_bytes_per_s,
            4.5e11,
            "450000000000.0 has no unit; write a rate like '450 GB/s' or '400 Gbit/s'",
        ),
        (
            parse_bytes_per_s,
            "400 Gb/s",
            (
                "unknown unit 'Gb/s' in '400 Gb/s' (is it Gbit/s or GB/s?); "
                "write a rate like '450 GB/s' or '400 Gbit/s'"
            ),
        ),
        (parse_flop_per_s, "989", "'989' has no unit; write a peak like '989 TFLOP/s' or '393 TOP/s'"),
        (parse_seconds, 3, "3 has no unit; write a time like '1 us', '2 ms' or '30 d'"),
        (parse_seconds, "-2 s", "'-2 s' is not above zero; write a time like '1 us', '2 ms' or '30 d'"),
        (parse_count, "1.5", "'1.5' is not a whole number; write a count like '4Mi' or '1.5M'"),
        (parse_count, "4Q", "unknown unit 'Q' in '4Q'; write a count like '4Mi', '15T' or a whole number"),
        (parse_count, -4, "'-4' is not above zero; write a count like '4Mi', '15T' or a whole number"),
        (parse_count, True, "cannot read True; write a count like '4Mi', '15T' or a whole number"),
    ],
)
def test_refuses_and_says_what_to_write(parse, given_, message):
    with pytest.raises(UnitError) as caught:
        parse(given_)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["1e999999999 GB", "1" * 400 + " GB", "GB", "", "1 2 GB", "0x10 GB", "١٢ GB\x00"]
)
def test_hostile_text_is_a_unit_error(text):
    with pytest.raises(UnitError):
        parse_bytes(text)


@given(st.text(max_size=40))
def test_any_text_either_parses_or_is_a_unit_error(text):
    for parse in (parse_bytes, parse_bytes_per_s, parse_flop_per_s, parse_seconds, parse_count):
        try:
            assert math.isfinite(parse(text))
        except UnitError as error:
            assert "\n" not in str(error)


@given(st.integers(1, 2**63))
def test_bytes_round_trip_within_print_precision(size):
    assert abs(parse_bytes(human_bytes(size)) - size) <= 5e-4 * size + 0.5  # four digits, then whole bytes


@given(st.floats(1e-3, 1e17))
def test_rates_round_trip_within_print_precision(rate):
    assert parse_bytes_per_s(human_rate(rate)) == pytest.approx(rate, rel=6e-4)


@given(st.floats(1e-9, 1e9))
def test_seconds_round_trip_within_print_precision(seconds):
    assert parse_seconds(human_seconds(seconds)) == pytest.approx(seconds, rel=6e-4)


@given(st.integers(1, 10**17))
def test_counts_round_trip_within_print_precision(count):
    assert parse_count(human_count(count)) == pytest.approx(count, rel=6e-4)


@given(st.integers(1, 9999), st.sampled_from(["", "Ki", "Mi", "Gi", "K", "M", "B", "T"]))
def test_short_counts_round_trip_exactly(number, suffix):
    count = parse_count(f"{number}{suffix}")
    if number < 1000:
        assert parse_count(human_count(count)) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (human_bytes(80 * 2**30), "80 GiB"),
        (human_bytes(500), "500 B"),
        (human_bytes(2**30 - 1), "1 GiB"),
        (human_rate(450e9), "450 GB/s"),
        (human_rate(989e12, "FLOP/s"), "989 TFLOP/s"),
        (human_seconds(3.2e-6), "3.2 us"),
        (human_seconds(0.0), "0 s"),
        (human_seconds(86400 * 30), "30 d"),
        (human_count(4 * 2**20), "4Mi"),
        (human_count(15 * 10**12), "15T"),
        (human_count(2048), "2048"),
        (human_count(16384), "16Ki"),
    ],
)
def test_prints(text, expected):
    assert text == expected


def test_pydantic_type_reports_the_same_words():
    adapter = TypeAdapter(Bytes)
    assert adapter.validate_python("80 GiB") == 80 * 2**30
    with pytest.raises(ValidationError, match="'80' has no unit; write a size like"):
        adapter.validate_python("80")
