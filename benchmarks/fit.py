"""Fits the default calibration to published training runs: `python benchmarks/fit.py [--write] [--workers N]`.

Reads benchmarks/data/training_runs.yaml.gz and the numbers that no run moves, benchmarks/data/training_fixed.yaml; fits
benchmarks/training_accuracy/parameters.py on step times. With --write it replaces hardware/data/calibration/default.yaml and
benchmarks/data/training_fits.json.gz, the fits with each model family and each source left out. Minutes on two cores.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from training_accuracy.cases import Case, read_cases, read_rows
from training_accuracy.fitting import Model, fit, refit_groups
from training_accuracy.folds import KEYS, groups_of
from training_accuracy.judge import SPLITS, band_coverage, predict
from training_accuracy.shipped import CALIBRATION, FITS, RUNS, Fits, fixed, save, without_bad
from training_accuracy.written import calibration_text

from meshwright.hardware.errors import MeshwrightError


def fits_of(cases: Sequence[Case], numbers: dict[str, Any], workers: int) -> Fits:
    """On all runs, and with each group of each split left out."""
    model = Model(cases, numbers, workers)
    full, slopes = fit(model, say=lambda text: print(text, file=sys.stderr))
    found = Fits(full)
    for split in SPLITS:
        folds = groups_of(cases, split)
        keys = np.array([KEYS[split](c) for c in cases])
        found.folds[split] = [
            (frozenset(keys[folds == fold].tolist()), one)
            for fold, one in refit_groups(model, folds, full, slopes)
        ]
        print(f"{split}: {len(found.folds[split])} folds", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the shipped calibration and fits")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    try:
        cases, _ = without_bad(read_cases(read_rows(RUNS))[0])
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    numbers = fixed()
    found = fits_of(cases, numbers, args.workers)
    measured, others = (band_coverage(cases, predict(cases, s, found, numbers), s)[0] for s in SPLITS)
    text = calibration_text(found.full, numbers, measured, others, cases)
    print(text)
    if args.write:
        save(found, FITS)
        (CALIBRATION / "default.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
