"""How a join reaches the rows of a key: always by the index that has it, whatever Postgres takes the table for.

Of a table that it knows to be nearly empty, as after a quiet hour, Postgres would as soon walk through a whole index as look a row up in
it. It takes such a walk into account where the order might serve: where an index's first column is compared with `=`. These comparisons
go by the index alike, and give it no reason to. Where nothing but the key is read, it takes a walk into account all the same: there a
`lateral` with `offset 0` stands instead, which is looked up once per row and never the other way round.
"""

WITH_A_QUEUE = "cross join lateral (select from queue where queue.id = message.queue_id offset 0) as queue"
"""Leaves out messages whose queue has been deleted."""


def key(column: str, value: str) -> str:
    """Return the SQL for: `column`, a primary key, is `value`, which another table's row has."""
    return f"{column} between {value} and {value}"


def shard_key(columns: str, values: str) -> str:
    """Return the SQL for: `columns`, which with `shard` are a primary key or begin it, are those `values` of another table's row."""
    (table, *_), (other, *_) = columns.split("."), values.split(".")
    return f"{table}.shard = any(array[{other}.shard]) and ({columns}) = ({values})"
