"""The figures: exact as of their count, counted by one replica for all."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

import asyncpg
import pytest
from harness.api import Api, Json
from harness.figures import OFTEN, ONCE, counting_takes
from harness.postgres import execute
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until

REFRESHED_S = 60
"""More than a refresh takes, with room for a busy machine."""

NOTHING = {"scheduled": 0, "pending": 0, "in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0}


def moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0


def counted_since(api: Api, since: float) -> Json:
    """Wait for figures that were counted later."""
    return until(lambda: (found := api.call("GET", "/stats")) and moment(found["as_of"]) > since and found, REFRESHED_S, 0.1)


def database_time(api: Api) -> float:
    return moment(api.call("GET", "/leases")["as_of"])


@pytest.mark.scar(47)
def test_figures_are_exact_by_queue_and_overall(start_server: Callable[..., Server], database_url: str) -> None:
    counting_takes(database_url, OFTEN)
    api = start_server().api
    api.put_queue("other")
    fine, retried, given_up, cancelled, *rest = api.send("default", *range(8))
    api.send("default", "later", delay=600)
    held = {lease["message"]["id"]: lease["receipt"] for lease in api.claim("default", max_messages=7)}
    api.nack(held[retried])
    api.ack(held[fine], api.claim_one("default")["receipt"])
    api.nack(held[given_up], retryable=False)
    execute(database_url, "delete from lease where message_id = $1", int(cancelled))
    execute(
        database_url,
        "update message set status = 'cancelled', ended_by = 'cancelled', finished_at = now() where id = $1",
        int(cancelled),
    )
    stale, overdue, _, _ = map(int, rest)
    execute(database_url, "update lease set beat_at = now() - interval '121 seconds' where message_id = $1", stale)
    execute(database_url, "update lease set expires_at = now(), check_at = 'infinity' where message_id = $1", overdue)
    api.send("other", *range(3))
    api.nack(api.claim_one("other")["receipt"], retryable=False)
    api.claim("other")
    execute(database_url, "update lease set granted_at = now() - interval '121 seconds' where queue_id <> 1")

    overall = counted_since(api, database_time(api))
    default = {
        "leases": {"active": 3, "stale": 1, "overdue": 1},
        "messages": {"scheduled": 1, "pending": 1, "in_progress": 3, "completed": 2, "failed": 1, "cancelled": 1},
        "retries": [{"attempt_count": 0, "completed": 1, "failed": 0}, {"attempt_count": 1, "completed": 1, "failed": 1}],
    }
    other = {
        "leases": {"active": 1, "stale": 1, "overdue": 0},
        "messages": NOTHING | {"pending": 1, "in_progress": 1, "failed": 1},
        "retries": [{"attempt_count": 1, "completed": 0, "failed": 1}],
    }
    both = {
        "leases": {"active": 4, "stale": 2, "overdue": 1},
        "messages": {"scheduled": 1, "pending": 2, "in_progress": 4, "completed": 2, "failed": 2, "cancelled": 1},
        "retries": [{"attempt_count": 0, "completed": 1, "failed": 0}, {"attempt_count": 1, "completed": 1, "failed": 2}],
    }
    counted = {"as_of": overall["as_of"], "refresh": overall["refresh"]}
    assert overall == counted | both
    assert overall["refresh"] >= 10
    assert api.call("GET", "/stats?queue=default") == counted | default
    assert api.call("GET", "/stats?queue=other") == counted | other


def test_a_queue_that_is_younger_than_the_count_has_no_figures_yet(start_server: Callable[..., Server], database_url: str) -> None:
    counting_takes(database_url, ONCE)
    api = start_server().api
    counted_since(api, 0)
    api.put_queue("young")
    api.send("young", 1)
    answer = api.call("GET", "/stats?queue=young")
    assert (answer["as_of"], answer["messages"]) == (None, NOTHING)
    assert api.call("GET", "/stats")["as_of"] is not None


@pytest.mark.rule(13)
def test_an_unknown_queue_has_none_and_a_bad_name_is_refused(api: Api) -> None:
    assert_problem(api.client.get("/stats?queue=nope"), 404, "queue-not-found")
    assert_problem(api.client.get("/stats?queue=%00"), 422, "invalid-request")


@pytest.mark.scar(47)
async def test_one_replica_counts_for_all_and_another_goes_on_when_it_dies(start_server: Callable[..., Server], database_url: str) -> None:
    await asyncio.to_thread(counting_takes, database_url, OFTEN)
    sql = await asyncpg.connect(database_url)
    await sql.execute("create table counted (as_of timestamptz, backend int)")
    await sql.execute(
        "create function note() returns trigger language plpgsql as "
        "$$ begin insert into counted values (new.as_of, pg_backend_pid()); return new; end $$"
    )
    await sql.execute("create trigger note after insert or update on figure for each row execute function note()")
    servers = [start_server() for _ in range(3)]
    for server in servers:
        server.api.send("default", 1)
    newest = 0.0
    for _ in range(2):
        shown = until(lambda since=newest: count_that_all_show(servers, since), REFRESHED_S, 0.1)  # type: ignore[misc]
        assert shown is not None
        newest = shown
    for server in servers[:2]:
        server.kill()
    survivor = servers[2].api
    survivor.send("default", 1)
    assert counted_since(survivor, database_time(survivor))["messages"]["pending"] == 4
    moments = [row["as_of"].timestamp() for row in await sql.fetch("select as_of from counted order by as_of")]
    assert len(moments) >= 3
    assert all(later - earlier >= 10 for earlier, later in pairwise(moments))
    await sql.close()


def count_that_all_show(servers: list[Server], since: float) -> float | None:
    """Return the moment of the later count that they all show, None as long as there is none: each shows it when it looks next."""
    shown = {server.api.call("GET", "/stats")["as_of"] for server in servers}
    return newest if len(shown) == 1 and (newest := moment(shown.pop())) > since else None


def test_counting_that_takes_long_is_done_more_rarely(start_server: Callable[..., Server], database_url: str) -> None:
    counting_takes(database_url, 100)
    first = start_server()
    as_of = counted_since(first.api, 0)["as_of"]
    first.kill()
    api = start_server().api
    answer = counted_since(api, 0)
    assert (answer["as_of"], answer["refresh"]) == (as_of, 3000)
