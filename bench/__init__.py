"""The bench: how fast the service is, each value beside its reference. `README.md` here says what each bar is."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT / "tests"))  # for `harness`, which starts real server processes
