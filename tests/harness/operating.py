"""What operators do to a queue, and messages to do it to."""

from harness.api import Api, Json
from harness.metrics import value
from harness.postgres import execute
from harness.server import Server
from harness.wait import until

RARELY = 60
"""A sweep interval, in seconds, that none of these tests lasts, the longest there is: whoever is served before that was woken."""


def pause(api: Api, queue: str) -> Json:
    return api.call("POST", f"/queues/{queue}/pause")


def resume(api: Api, queue: str) -> Json:
    return api.call("POST", f"/queues/{queue}/resume")


def purge(api: Api, queue: str, *statuses: str) -> Json:
    """Purge a queue to the end, in as many calls as it takes: each stops after some seconds, which may be lost to the machine."""
    purged, more = 0, True
    while more:
        answer = api.call("POST", f"/queues/{queue}/purge", {"statuses": statuses} if statuses else None)
        purged, more = purged + answer["purged"], answer["more"]
    return {"purged": purged, "more": more}


def redrive(api: Api, queue: str, *, limit: int | None = None, **options: Json) -> Json:
    """Redrive a queue to the end in the same way."""
    redriven, more = 0, True
    while more:
        left = {} if limit is None else {"limit": limit - redriven}
        answer = api.call("POST", f"/queues/{queue}/redrive", options | left or None)
        redriven += answer["redriven"]
        more = answer["more"] and redriven != limit
    return {"redriven": redriven, "more": more}


def sweep_that_it_begins_with(api: Api) -> int:
    """Wait for the sweep that a timer begins with, and return how many there were by then: what is due later is left to the test."""
    return int(until(lambda: api.call("GET", "/recovery")["total_scans"]))


def messages(api: Api, queue: str) -> list[str]:
    return [item["id"] for item in api.call("GET", f"/queues/{queue}/messages", params={"limit": 1000})["items"]]


def fill(url: str, queue: str, count: int, source: str | None = None, status: str = "pending") -> None:
    """Store messages that were never leased, as dead letters if they have a source."""
    execute(
        url,
        "insert into message (shard, queue_id, body, priority, status, fairness_key, source_queue, available_at, finished_at) "
        "select shard, id, '0', 0, $3, '', $4, now() + case $3 when 'scheduled' then interval '1 hour' else '0' end, "
        "case when $3 in ('completed', 'failed', 'cancelled') then now() end "
        "from queue cross join generate_series(1, $2::int) where name = $1",
        queue,
        count,
        status,
        source,
    )


def bury(url: str, dead_letters: str, source: str, *message_ids: str) -> None:
    """Move messages to a dead-letter queue as the last nack does."""
    execute(
        url,
        "update message set queue_id = (select id from queue where name = $1), source_queue = $2, status = 'pending', finished_at = null, "
        "ended_by = 'dead_lettered', reason = 'nacked', attempts_before = attempt_count where id = any($3)",
        dead_letters,
        source,
        [int(each) for each in message_ids],
    )


def parked_on(server: Server) -> int:
    return int(value(server.api, "leasebeat_parked_claims"))


def all_states(api: Api, url: str, queue: str) -> dict[str, str]:
    """Make one message in each state, and return their ids by state."""
    names = ("in_progress", "completed", "failed", "cancelled", "pending")
    ids = dict(zip(names, api.send(queue, *names), strict=True)) | {"scheduled": api.send(queue, "scheduled", delay=500)[0]}
    receipts = {lease["message"]["body"]: lease["receipt"] for lease in api.claim(queue, max_messages=4)}
    api.ack(receipts["completed"])
    api.nack(receipts["failed"], retryable=False)
    api.release(receipts["cancelled"])
    execute(url, "update message set status = 'cancelled', finished_at = now() where id = $1", int(ids["cancelled"]))
    assert {status: api.message(each)["status"] for status, each in ids.items()} == {status: status for status in ids}
    return ids
