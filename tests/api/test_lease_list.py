"""The list of active leases: who holds what, since when, until when."""

import uuid
from collections.abc import Iterator
from datetime import datetime

import asyncpg
import orjson
import pytest
from harness.api import Api, Json
from harness.holding import holding
from harness.problems import assert_problem

from app.store.reads import OVERDUE


def listed(api: Api, **params: object) -> list[Json]:
    return list(api.call("GET", "/leases", params=params)["items"])


def test_a_lease_is_listed_from_its_grant_to_its_end(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, 1)
    assert listed(api, queue=queue) == []
    lease = api.claim_one(queue, "worker-7", visibility_timeout=120)
    answer = api.call("GET", "/leases", params={"queue": queue})
    (item,) = answer["items"]
    expected = {"message_id": message_id, "queue": queue, "worker_id": "worker-7", "generation": 1, "expired": False}
    assert item | expected | {"last_beat_at": None, "progress": None, "detail": None} == item
    assert item["expires_in"] == pytest.approx(-seconds(item["expires_at"], datetime.fromisoformat(answer["as_of"])), abs=1e-5)
    assert item["expires_at"] == lease["expires_at"]
    assert (datetime.fromisoformat(item["expires_at"]) - datetime.fromisoformat(item["acquired_at"])).total_seconds() == 120
    api.ack(lease["receipt"])
    assert listed(api, queue=queue) == []


def test_it_shows_what_the_last_beat_said(api: Api, queue: str) -> None:
    api.send(queue, 1)
    lease = api.claim_one(queue)
    (beaten,) = api.beat(lease["receipt"], progress=2**63 - 1, detail={"step": ["ä", 1.5]})
    (item,) = listed(api, queue=queue)
    assert (item["progress"], item["detail"]) == (2**63 - 1, {"step": ["ä", 1.5]})
    assert item["expires_at"] == beaten["expires_at"]
    assert item["acquired_at"] <= item["last_beat_at"]


def test_filters_by_queue_and_worker_apart_and_together(api: Api, queue: str) -> None:
    other = f"{queue}.other"
    api.put_queue(other)
    mine, yours = (f"{name}-{uuid.uuid4().hex}" for name in ("mine", "yours"))
    api.send(queue, 1, 2)
    api.send(other, 3)
    a, b = api.claim_one(queue, mine)["message"]["id"], api.claim_one(queue, yours)["message"]["id"]
    c = api.claim_one(other, mine)["message"]["id"]

    def ids(**params: object) -> list[str]:
        return [item["message_id"] for item in listed(api, **params)]

    assert ids(queue=queue) == [a, b]
    assert ids(worker_id=mine) == [a, c]
    assert ids(queue=queue, worker_id=mine) == [a]
    assert ids(queue=other, worker_id=yours) == []
    assert ids(worker_id=mine + "x") == []
    api.call("DELETE", f"/queues/{other}", params={"force": True}, expect=204)


OUT_OF_REACH = "select from lease where message_id = any($1::bigint[]) for key share"
"""Keeps leases locked, so that they can run out and no timer can reclaim them."""
RUN_OUT = "update lease set expires_at = now() - $2::float8 * interval '1 second', check_at = now() where message_id = $1"


@pytest.mark.rule(3)
async def test_overdue_leases_are_told_from_living_ones_before_any_reclaim(
    api: Api, queue: str, shared_database: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    over, alive = api.send(queue, "over", "alive")
    api.claim(queue, max_messages=2)
    async with holding(shared_database, OUT_OF_REACH, [int(over)]):
        await sql.execute(RUN_OUT, int(over), 0)
        (item,) = listed(api, queue=queue, overdue=True)
        assert (item["message_id"], item["expired"]) == (over, True)
        assert item["expires_in"] <= 0
        (item,) = listed(api, queue=queue, overdue=False)
        assert (item["message_id"], item["expired"]) == (alive, False)
        assert [item["message_id"] for item in listed(api, queue=queue)] == [over, alive]


async def test_the_longest_overdue_come_first_with_true_numbers(
    api: Api, queue: str, shared_database: str, sql: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    second, alive, first = api.send(queue, *range(3))
    for each in ("second", "alive", "first"):
        api.claim_one(queue, f"worker-{each}")
    await sql.execute("update lease set beat_at = now() - interval '90 minutes' where message_id = $1", int(first))
    async with holding(shared_database, OUT_OF_REACH, [int(each) for each in (alive, first, second)]):
        await sql.execute(RUN_OUT, int(first), 0.4)
        await sql.execute(RUN_OUT, int(second), 0)
        answer = api.call("GET", "/leases", params={"queue": queue, "overdue": True, "limit": 2})
        assert [item["message_id"] for item in answer["items"]] == [first, second]
        assert answer["next_cursor"] is None
        as_of = datetime.fromisoformat(answer["as_of"])
        for item in answer["items"]:
            assert item["overdue"] == -item["expires_in"] == pytest.approx(seconds(item["expires_at"], as_of), abs=1e-5)
            assert 0 <= item["overdue"] < 60
            assert item["since_beat"] == pytest.approx(seconds(item["last_beat_at"] or item["acquired_at"], as_of), abs=1e-5)
        assert 90 <= answer["items"][0]["since_beat"] / 60 < 91
        assert answer["items"][1]["since_beat"] < 60
        assert [item["worker_id"] for item in listed(api, overdue=True, worker_id="worker-second", queue=queue)] == ["worker-second"]
        assert [item["message_id"] for item in listed(api, queue=queue, overdue=True, limit=1)] == [first]


def seconds(moment: str, as_of: datetime) -> float:
    return (as_of - datetime.fromisoformat(moment)).total_seconds()


async def test_overdue_leases_are_found_without_a_look_at_living_ones(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into lease (shard, message_id, queue_id, generation, granted_at, expires_at, check_at, deadline, worker_id) "
        "select 0, n, queue.id, 1, now(), until, until, until, 'w' "
        "from queue, generate_series(1, 20000) n, "
        "lateral (select now() + interval '1 hour' * case when n % 1000 = 0 then -1 else 1 end as until) _"
    )
    await connection.execute("analyze lease")
    await connection.execute(f"prepare overdue (smallint[], bigint, text, bigint) as {OVERDUE}")
    (plan,) = orjson.loads(await connection.fetchval("explain (analyze, format json) execute overdue('{0}', null, null, 100)"))
    nodes = list(walk(plan["Plan"]))
    assert "lease_due" in {node.get("Index Name") for node in nodes}
    assert max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in nodes) == 20
    await connection.close()


def walk(node: Json) -> Iterator[Json]:
    yield node
    for below in node.get("Plans", ()):
        yield from walk(below)


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pages_hold_every_lease_once_and_the_last_says_so(api: Api, queue: str, limit: int) -> None:
    ids = api.send(queue, *range(5))
    api.claim(queue, max_messages=5)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.call("GET", "/leases", params={"queue": queue, "limit": limit, "cursor": cursor})
        assert 0 < len(page["items"]) <= limit
        seen += [item["message_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ids


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("queue=", "queue"),
        ("queue=%00", "queue"),
        ("worker_id=", "worker_id"),
        ("worker_id=a%00b", "worker_id"),
        (f"worker_id={'x' * 201}", "worker_id"),
        ("overdue=maybe", "overdue"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=NaN", "limit"),
        ("limit=1e2", "limit"),
        (f"limit={'9' * 5000}", "limit"),
        ("cursor=-1", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=%D9%A3", "cursor"),
        (f"cursor={'9' * 31}", "cursor"),
    ],
)
@pytest.mark.rule(13)
def test_a_bad_parameter_is_refused_by_name(api: Api, query: str, field: str) -> None:
    problem = assert_problem(api.client.get(f"/leases?{query}"), 422, "invalid-request")
    assert [error["field"] for error in problem["errors"]] == [f"query.{field}"]
