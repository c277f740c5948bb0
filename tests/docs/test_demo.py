"""What `make demo` promises: workers that are killed or stopped lose their leases, and every message is completed once."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.timeout(320)
@pytest.mark.rule(6, 8)
def test_the_demo_runs_to_its_good_end() -> None:
    ran = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "All of it was completed, each message once, with the right result."
