"""`python -m meshwright.optimizer`: the command line without its script."""

import sys

from meshwright.optimizer.cli import main

sys.exit(main())
