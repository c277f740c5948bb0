"""How long an interval is, as SQL."""


def seconds(interval: str) -> str:
    """Return the SQL for how long an interval is, as float8. `extract`, which counts in decimals, took a tenth of a beat's time."""
    return f"date_part('epoch', {interval})"
