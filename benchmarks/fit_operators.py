"""Fits hardware/data/kernels/*.yaml to benchmarks/data/operators: `python benchmarks/fit_operators.py [--write] [--law LAW]`.

Every case (chip, engine, kernel, number format) is fitted on all its rows and again without each part of the shapes; the
latter make errors and bands, and predict the shipped rows in `accuracy.py operators`. Takes some minutes on one core.
"""

import argparse
from typing import Any

import numpy as np
import yaml
from operator_accuracy.cases import Cases
from operator_accuracy.fit import BAND, Fits, fit_law, law_file, rounded
from operator_accuracy.score import predicted
from operator_accuracy.shipped import FOLDS_FILE, Known, folds_data, shipped_cases

from meshwright.hardware.kernel_rates import FOLDER, LAWS, Entry, LawFile

HEADER = """\
# Numbers of the law `{law}` (meshwright.hardware.kernel_rates.{spec}), fitted to published measurements of single kernels.
# Written by benchmarks/fit_operators.py from benchmarks/data/operators; change those and not this file.
# error: standard error of the logarithm, over shapes left out. loose: not told by the measurements.
"""


def fitted_file(cases: Cases) -> tuple[LawFile, Fits]:
    """The file of a law, and the fits behind it."""
    fits = fit_law(cases)
    provenance = (
        f"fit to {len(cases)} rows of {len({key[0] for key in cases.keys})} chips, "
        f"{len(np.unique(cases.shape))} shapes; sources in benchmarks/data/operators/NOTICE.md"
    )
    return law_file(cases.law, fits.whole, provenance, family_band(cases, fits)), fits


def family_band(cases: Cases, fits: Fits) -> float:
    """80% of measured times lie within a factor 1 + this of what their chip's family predicts, their shapes left out too."""
    whole = law_file(cases.law, fits.whole)
    by = Known(whole, tuple(law_file(cases.law, part) for part in fits.parts), np.unique(cases.shape))
    off = np.abs(np.log(predicted(cases, by, itself=False) / cases.seconds))
    off = off[np.isfinite(off)]
    return rounded(float(np.expm1(np.quantile(off, BAND)))) if len(off) else 1.0


def written(file: LawFile) -> str:
    """The file's text, one line per case."""
    spec = LAWS[file.law].__name__
    out = [
        HEADER.format(law=file.law, spec=spec),
        f"law: {file.law}\n",
        f"provenance: {_flow(file.provenance)}\n",
    ]
    out += [f"family_band: {file.family_band}\n", "entries:\n"]
    for chip, engines in file.entries.items():
        out.append(f"  {_flow(chip)}:\n")
        for engine, kernels in engines.items():
            out.append(f"    {_flow(engine)}:\n")
            for kernel, entries in kernels.items():
                out.append(f"      {_flow(kernel)}:\n")
                out += [f"        {_flow(case)}: {_flow(_dump(entry))}\n" for case, entry in entries.items()]
    return "".join(out)


def _dump(entry: Entry) -> dict[str, Any]:
    dump = entry.model_dump(exclude_defaults=True)
    return dump | ({"loose": list(entry.loose)} if entry.loose else {})


def _flow(value: Any) -> str:
    text = yaml.dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the shipped files")
    parser.add_argument("--law", choices=LAWS, help="only one law")
    args = parser.parse_args()
    read, fits = shipped_cases(), {}
    for law in [args.law] if args.law else LAWS:
        file, fits[law] = fitted_file(read.cases[law])
        if args.write:
            (FOLDER / f"{law}.yaml").write_text(written(file), encoding="utf-8")
            print(f"{law}: {len(fits[law].whole)} cases, {len(read.cases[law])} rows", flush=True)
        else:
            print(written(file), end="")
    if args.write:
        FOLDS_FILE.write_bytes(folds_data(fits))


if __name__ == "__main__":
    main()
