"""The program's door: `meshwright` and `python -m meshwright.optimizer` come in here.

The command line is imported inside, so that an interrupt is answered from the first moment: also while modules
load, where compiled packages may turn KeyboardInterrupt into an error of their own.
"""

import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process and return its exit code."""
    interrupts = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    # A job that a shell runs in the background ignores interrupts, and keeps doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from meshwright.optimizer.cli import main as run

        return run()
    except BaseException:
        if not interrupts:
            raise
        print("meshwright: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
