"""Ready: which messages a statement has made ready, and the first of them at each level, where claims are to look again."""

from collections.abc import Iterable

from app.leases.floors import Firsts

Ready = tuple[int, str, int, int]
"""A queue, a fairness key and a priority, and a message that is ready there."""

QueueFirsts = dict[int, Firsts]
"""The first messages that may be ready again, by queue. Where there are none, those may be had that were ready before."""


def first_ready_of(table: str, *, queue: str, message: str) -> str:
    """Return the SQL for the first message of each queue and level in a table, as an array of `Ready`."""
    level = f"{queue}, fairness_key, priority"
    return f"array(select ({level}, min({message})) from {table} where {queue} is not null group by {level})"


def firsts_of(ready: Iterable[Ready]) -> QueueFirsts:
    firsts: QueueFirsts = {}
    for queue_id, fairness_key, priority, message_id in ready:
        of_queue = firsts.setdefault(queue_id, {})
        level = (fairness_key, -priority)
        of_queue[level] = min(message_id, of_queue.get(level, message_id))
    return firsts
