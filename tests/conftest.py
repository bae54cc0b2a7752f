"""Makes the helper modules beside the tests importable by their plain names (tests are not packages)."""

import sys
from pathlib import Path

for folder in ("cli", "costmodel", "optimizer"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
