"""A queue's times, in seconds, as SQL on the row `queue`: those it has derived if it is adaptive, else those configured."""

VISIBILITY_TIMEOUT = "coalesce(queue.derived_lease, queue.visibility_timeout)"
EXTENSION = "coalesce(queue.derived_lease, queue.extension)"
BEAT_INTERVAL = "coalesce(queue.derived_lease / 10, queue.beat_interval)"
