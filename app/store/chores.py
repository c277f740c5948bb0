"""What only one replica at a time does to a shard, and how it knows: an advisory lock that lasts for its transaction.

Never one of the session: behind PgBouncer that would outlive its user (scar 45).
"""

from enum import IntEnum

ALL_SHARDS = -1


class Chore(IntEnum):
    """The chores, each by the first key of its lock; the second is the shard."""

    COUNT = 0x6C656101
    TRIM = 0x6C656102
    RETAIN = 0x6C656103
    FORGET = 0x6C656104
    DERIVE = 0x6C656105


def mine(chore: Chore) -> str:
    """Return the step `mine` of a statement on the shard $1: that shard, or no row while another replica is at this chore there."""
    return f"mine as materialized (select $1::smallint as shard where pg_try_advisory_xact_lock({chore.value}, $1::smallint))"
