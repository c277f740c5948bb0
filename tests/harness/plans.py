"""Statements and their plans as Postgres executed them, and tables full enough for a bad plan to show."""

from typing import Any, TypeAlias

import asyncpg
import orjson

from app.store.pick import PICK_ANY, PICK_BY_BOTH, PICK_BY_TASK, PICK_BY_TYPE

CLAIM_KINDS = {
    "any": (PICK_ANY, ()),
    "by type": (PICK_BY_TYPE, (["a", "b"],)),
    "by task": (PICK_BY_TASK, ("t",)),
    "by both": (PICK_BY_BOTH, (["a", "b"], "t")),
}
"""The ways to pick messages, each with the arguments of a filter that the messages of `fill` pass."""

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Node: TypeAlias = dict[str, Any]


async def explain(sql: Connection, statement: str, *arguments: object) -> list[Node]:
    """Run the statement, undo what it did, and return every node of its plan, as executed."""
    await sql.execute(f"prepare explained as {statement}")
    try:
        return await explain_prepared(sql, "explained", *arguments)
    finally:
        await sql.execute("deallocate explained")


async def explain_prepared(sql: Connection, name: str, *arguments: object) -> list[Node]:
    """Do the same with a statement that the session has prepared.

    `explain <statement>` would plan it for the arguments at hand, whatever `plan_cache_mode` says: only `execute` takes a generic plan.
    """
    transaction = sql.transaction()
    await transaction.start()
    try:
        (plan,) = orjson.loads(await sql.fetchval(f"explain (analyze, buffers, format json) {execution(name, *arguments)}"))
    finally:
        await transaction.rollback()
    return _flatten(plan["Plan"])


def execution(name: str, *arguments: object) -> str:
    """Return the call of a prepared statement; `explain` takes no other parameters."""
    listed = ", ".join(map(_literal, arguments))
    return f"execute {name} ({listed})" if listed else f"execute {name}"


def reads(nodes: list[Node]) -> list[Node]:
    """Return the nodes that read tables."""
    return [node for node in nodes if "Relation Name" in node and node["Node Type"] != "ModifyTable"]


def scans(nodes: list[Node], *tables: str) -> list[Node]:
    """Return the nodes that read some tables."""
    return [node for node in reads(nodes) if node["Relation Name"] in tables]


def goes_by_key(read: Node) -> bool:
    """Tell whether an index is read at a key, or in a range of it: not as a whole, and not all of one shard."""
    columns = 1 if read["Relation Name"] in {"queue", "worker"} else 2
    return "Index Cond" in read and read["Index Cond"].count(" AND ") >= columns - 1


def rows_read(nodes: list[Node], table: str) -> int:
    """Count the rows of a table that the statement looked at, those that it then left out among them."""
    returned: float = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans(nodes, table))
    return round(returned) + rows_left_out(nodes, table)


def rows_left_out(nodes: list[Node], table: str) -> int:
    """Count the rows of a table that the statement looked at in vain."""
    reasons = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    in_vain: float = sum(node.get(reason, 0) * node["Actual Loops"] for node in scans(nodes, table) for reason in reasons)
    return round(in_vain)


def buffers(nodes: list[Node]) -> int:
    """Count the pages that the statement looked at, each as often as it did."""
    whole = nodes[0]
    return int(whole["Shared Hit Blocks"] + whole["Shared Read Blocks"])


async def fill(
    sql: Connection,
    *,
    ready: int,
    delayed: int = 0,
    leased: int = 0,
    completed: int = 0,
    queue_id: int = 1,
    keys: int = 1,
    work_type: str = "a",
    task_id: str = "t",
) -> None:
    """Put messages in all states into a queue, those that are not ready first, so that they are in front by age.

    Those of all states have the same fairness keys, work type and task.
    """
    insert = (
        "insert into message (shard, queue_id, body, priority, work_type, task_id, fairness_key, status{}) "
        f"select 0, {queue_id}, '1', 0, '{work_type}', '{task_id}', 'key-' || n % {keys}, {{}} from generate_series(1, $1) as n"
    )
    await sql.execute(insert.format(", available_at", "'scheduled', now() + interval '1 hour'"), delayed)
    await sql.execute(insert.format(", generation", "'in_progress', 1"), leased)
    await sql.execute(insert.format(", generation, ended_by, finished_at", "'completed', 1, 'acked', now()"), completed)
    await sql.execute(insert.format("", "'pending'"), ready)
    await sql.execute(
        "insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id) "
        "select 0, id, queue_id, 1, now(), now() + interval '1 hour', now() + interval '1 hour', now() + interval '12 hours', 'w' "
        "from message where status = 'in_progress' and queue_id = $1 on conflict do nothing",
        queue_id,
    )


_MANY = 3000
_MANY_ROWS = {
    "queue": f"""
        insert into queue (shard, name, visibility_timeout, extension, beat_interval, extension_enabled, max_lease, max_attempts,
                           progress_required, weights)
        select shard, 'queue-' || n, visibility_timeout, extension, beat_interval, extension_enabled, max_lease, max_attempts,
               progress_required, weights
        from queue, generate_series(1, {_MANY}) n
    """,
    "recheck": f"insert into recheck (shard, block, check_at) select 0, n, now() from generate_series(1, {_MANY}) n",
    "checkpoint": "insert into checkpoint (shard, message_id, generation, kind, history, facts) "
    f"select 0, n, 1, 'nacked', 'message:' || n, '{{}}' from generate_series(1, {_MANY}) n",
    "send_request": "insert into send_request (shard, queue_id, key, digest, message_ids) "
    f"select 0, 1, 'key-' || n, '', '{{}}' from generate_series(1, {_MANY}) n",
    "worker": f"insert into worker (worker_id) select 'worker-' || n from generate_series(1, {_MANY}) n",
}


async def empty_out(sql: Connection) -> None:
    """Leave many pages in each table and one row, in the last of them, as a busy day does. Postgres takes it for a table of one row."""
    await fill(sql, ready=_MANY, leased=_MANY)
    for insert in _MANY_ROWS.values():
        await sql.execute(insert)
    for table in ("message", "lease", *_MANY_ROWS):
        await sql.execute(f"delete from {table} where ctid <> (select max(ctid) from {table})")
        await sql.execute(f"vacuum (analyze) {table}")
        assert await sql.fetchval("select relpages > 5 and reltuples <= 1 from pg_class where relname = $1", table)


def _flatten(node: Node) -> list[Node]:
    return [node, *(inner for child in node.get("Plans", []) for inner in _flatten(child))]


def _literal(value: object) -> str:
    """Write an argument as an SQL literal, which takes the type that the statement has for it."""
    return "null" if value is None else "'" + _text(value).replace("'", "''") + "'"


def _text(value: object) -> str:
    if isinstance(value, list):
        return "{" + ",".join("null" if each is None else _quoted(_text(each)) for each in value) + "}"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
