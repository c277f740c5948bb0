"""Metrics: exact numbers, on a server that nobody else uses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.figures import OFTEN, counting_takes
from harness.metrics import samples, value
from harness.postgres import execute
from harness.problems import assert_problem
from harness.server import Server
from harness.wait import until


def test_every_verb_is_counted_by_its_outcome(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    api.send("default", *range(6))
    api.send("default", "later", delay=600)
    leases = [lease["receipt"] for lease in api.claim("default", max_messages=6)]
    api.claim("default")
    api.beat(*leases[:4])
    api.beat(leases[0])
    api.ack(leases[0], leases[1])
    api.ack(leases[0])
    api.nack(leases[2])
    api.nack(leases[3], retryable=False)
    api.release(leases[4])
    api.beat(leases[0], leases[2], "A" * 44)
    assert value(api, "leasebeat_sends_total") == 7
    assert value(api, "leasebeat_claims_total") == 6
    assert samples(api, "leasebeat_beats_total") == {
        (("outcome", "extended"),): 4,
        (("outcome", "held"),): 1,
        (("outcome", "settled"),): 2,
    }
    assert samples(api, "leasebeat_settles_total") == {
        (("outcome", "acked"), ("verb", "ack")): 3,
        (("outcome", "requeued"), ("verb", "nack")): 1,
        (("outcome", "failed"), ("verb", "nack")): 1,
        (("outcome", "released"), ("verb", "release")): 1,
    }


def test_a_refused_call_counts_for_nothing(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    assert_problem(api.client.post("/queues/default/messages", json={"messages": []}), 422, "invalid-request")
    assert_problem(api.client.post("/queues/nope/messages", json={"messages": [{"body": 1}]}), 404, "queue-not-found")
    api.claim("default")
    for name in ("sends", "claims"):
        assert value(api, f"leasebeat_{name}_total") == 0
    for name in ("beats", "settles", "reclaims"):
        assert samples(api, f"leasebeat_{name}_total") == {}


@pytest.mark.rule(8)
def test_reclaims_are_counted_once_each_with_their_lag(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    api.send("default", *range(5))
    api.send("default", *range(3), max_attempts=1)
    assert len(api.claim("default", max_messages=8, visibility_timeout=0.05)) == 8
    until(lambda: value(api, "leasebeat_reclaims_total", outcome="expired") == 8)
    assert value(api, "leasebeat_reclaims_total", outcome="given_up") == 3
    passes = value(api, "leasebeat_reclaim_lag_seconds_count")
    assert 1 <= passes <= 8
    assert 0 < value(api, "leasebeat_reclaim_lag_seconds_sum") < 60
    assert value(api, "leasebeat_timer_lag_seconds") < 30


@pytest.mark.scar(47)
def test_leases_and_messages_are_counted_by_queue_in_the_background(start_server: Callable[..., Server], database_url: str) -> None:
    counting_takes(database_url, OFTEN)
    api = start_server().api
    api.put_queue("other")
    api.send("default", *range(5))
    api.send("other", 1)
    api.claim("default", max_messages=3)
    api.claim("other")
    execute(
        database_url, "update lease set granted_at = now() - interval '3 minutes' where message_id = (select min(message_id) from lease)"
    )
    stale = {(("queue", "default"),): 1, (("queue", "other"),): 0}
    until(lambda: samples(api, "leasebeat_stale_leases") == stale, pause=0.1)
    assert samples(api, "leasebeat_active_leases") == {(("queue", "default"),): 3, (("queue", "other"),): 1}
    messages = samples(api, "leasebeat_messages")
    assert {labels: n for labels, n in messages.items() if n} == {
        (("queue", "default"), ("status", "in_progress")): 3,
        (("queue", "default"), ("status", "pending")): 2,
        (("queue", "other"), ("status", "in_progress")): 1,
    }
    assert len(messages) == 12  # a state that is empty is shown so


def test_parked_claims_are_a_gauge_that_comes_down_again(start_server: Callable[..., Server]) -> None:
    api = start_server().api
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(api.claim, "default", wait=30) for _ in range(3)]
        until(lambda: value(api, "leasebeat_parked_claims") == 3)
        api.send("default", 1, 2, 3)
        assert [len(call.result()) for call in calls] == [1, 1, 1]
    assert value(api, "leasebeat_parked_claims") == 0


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("*/*", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
def test_they_come_in_the_format_that_the_scraper_accepts(server: Server, accept: str, content_type: str) -> None:
    answer = server.api.client.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    assert "leasebeat_claims" in answer.text
