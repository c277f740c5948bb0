"""Sets the wall clock of a Python process wrong, by WRONG_CLOCK_S seconds. Python imports this before anything else."""

import os
import time

_OFFSET_S = float(os.environ["WRONG_CLOCK_S"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _OFFSET_S
time.time_ns = lambda: _time_ns() + int(_OFFSET_S * 1e9)
