"""The end of every such command: print the working as a page or as JSON."""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working


def give(args: argparse.Namespace, working: "Working") -> int:
    """Print and return the exit code."""
    from meshwright.optimizer.report.page import emit, show
    from meshwright.optimizer.report.working import working_data, working_page

    if args.json:
        emit(json.dumps(working_data(working), indent=2, sort_keys=True) + "\n")
    else:
        show(working_page(working))
    return 0
