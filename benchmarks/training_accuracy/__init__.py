"""Step times of published training runs: `benchmarks/accuracy.py training FILE` and `benchmarks/fit.py`."""
