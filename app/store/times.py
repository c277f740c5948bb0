"""Times in SQL, in seconds.

Those of the row `queue` are the ones it has derived if it is adaptive, else those configured.
"""

VISIBILITY_TIMEOUT = "coalesce(queue.derived_lease, queue.visibility_timeout)"
EXTENSION = "coalesce(queue.derived_lease, queue.extension)"
BEAT_INTERVAL = "coalesce(queue.derived_lease / 10, queue.beat_interval)"


def seconds(interval: str) -> str:
    """Return the SQL for how long an interval is, as float8. `extract`, which counts in decimals, took a tenth of a beat's time."""
    return f"date_part('epoch', {interval})"
