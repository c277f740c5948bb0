"""Real answers of every operation are what the OpenAPI document says they are."""

import re
import uuid
from collections.abc import Iterator

import httpx
import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
from harness.api import Api
from harness.server import Server
from harness.spec import Operation, document, operations
from harness.wait import until

MISSING = "A" * 44


class Checked(Api):
    """The interface, with each answer checked against the document."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(client)
        self.seen: set[tuple[str, int]] = set()
        client.event_hooks = {"response": [self._check]}

    def _check(self, answer: httpx.Response) -> None:
        answer.read()
        operation = operation_of(answer.request.method, answer.request.url.path)
        self.seen.add((str(operation), answer.status_code))
        documented = operation.spec["responses"]
        assert str(answer.status_code) in documented, f"{operation}: {answer.status_code} is not documented: {answer.text}"
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if "content" not in documented[str(answer.status_code)]:
            assert not answer.content
        elif media_type.endswith("json"):
            schema = operation.response_schema(answer.status_code, media_type)
            jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(answer.json())
        else:
            assert media_type in documented[str(answer.status_code)]["content"]


def operation_of(method: str, path: str) -> Operation:
    """Find the operation that a request is for; one with fewer parameters in its path comes first."""
    fitting = [
        operation
        for operation in sorted(operations(), key=lambda each: each.path.count("{"))
        if operation.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", operation.path), path)
    ]
    assert fitting, f"{method} {path} is not documented"
    return fitting[0]


@pytest.fixture(scope="module")
def seen(server: Server) -> Iterator[set[tuple[str, int]]]:
    """Call every operation in every way that it is documented to answer, and return what was seen."""
    with httpx.Client(base_url=server.url, timeout=70) as client:
        api = Checked(client)
        queue = f"seen-{uuid.uuid4().hex}"
        configure(api, queue)
        work(api, queue)
        operate(api, queue)
        dismiss(api, queue)
        refuse(api, queue)
        client.delete(f"/queues/{queue}", params={"force": True})
        for path in ("/healthz", "/metrics"):
            client.get(path)
        until(lambda: client.get("/readyz").status_code == 200)
        yield api.seen


def configure(api: Api, queue: str) -> None:
    api.put_queue(queue, extension=1000, beat_interval=0, weights={"a": 2})
    api.put_queue(queue, progress_required=True, beat_interval=0, extension=1000)
    api.call("GET", f"/queues/{queue}")
    api.call("GET", "/queues", params={"limit": 1})
    api.call("GET", "/queues", params={"limit": 1000})


def work(api: Api, queue: str) -> None:
    api.claim(queue)
    given_up, failed, released, acked, held = api.send(queue, *range(5), headers={"a": "b"}, task_id="t", work_type="w", max_attempts=2)
    api.send(queue, "later", delay=500)
    receipts = {lease["message"]["id"]: lease["receipt"] for lease in api.claim(queue, max_messages=5)}
    api.beat(receipts[acked], progress=1, detail={"a": 1})
    api.beat(*receipts.values(), MISSING, progress=1)
    api.nack(receipts[failed], MISSING, error="once", delay=100)
    api.nack(receipts[given_up], retryable=False)
    api.release(receipts[released], MISSING)
    api.claim(queue)
    api.ack(receipts[acked], receipts[acked], MISSING, output=[1, None])
    api.beat(*receipts.values())
    for each in (given_up, failed, released, acked, held):
        api.message(each)
        api.checkpoints(each)
    api.call("GET", f"/queues/{queue}/messages")
    api.call("GET", f"/queues/{queue}/messages", params={"limit": 1, "status": "completed"})
    api.call("GET", "/leases", params={"queue": queue, "limit": 1})
    api.call("GET", "/recovery")
    api.call("GET", "/recovery", params={"verbose": True}, expect=422)
    api.call("GET", "/stats")


def operate(api: Api, queue: str) -> None:
    """Make the calls whose body may be left out. The worker has the queue's name, and goes on holding a lease."""
    cancelled, acked, _held = api.send(queue, *range(3))
    receipts = {lease["message"]["id"]: lease["receipt"] for lease in api.claim(queue, worker_id=queue, max_messages=3)}
    api.ack(receipts[acked])
    for path in (
        f"/messages/{cancelled}/cancel",
        f"/workers/{queue}/drain",
        "/recovery/sweep",
        *(f"/queues/{queue}/{verb}" for verb in ("pause", "resume", "purge", "redrive")),
    ):
        api.call("POST", path)
        api.call("POST", path, expect=403, headers={"origin": "http://elsewhere.example"})
        api.call("POST", path, {"unknown_field": 1}, expect=422)
        api.call("POST", path, expect=415, content=b"{}")
        api.call("POST", path, expect=413, content=b" " * (8 * 1024 * 1024 + 1))
    api.message(cancelled)
    api.call("POST", f"/messages/{acked}/cancel", expect=409)
    api.call("POST", "/messages/0/cancel", expect=404)
    api.call("POST", "/workers/nope/drain", expect=404)
    for verb in ("pause", "resume", "purge", "redrive"):
        api.call("POST", f"/queues/nope/{verb}", expect=404)


def dismiss(api: Api, worker_id: str) -> None:
    assert api.call("GET", f"/workers/{worker_id}")["leases"]
    api.call("GET", "/workers", params={"limit": 1})
    api.call("GET", "/workers", params={"limit": 1000})
    api.call("DELETE", f"/workers/{worker_id}", expect=204)
    api.call("GET", "/workers", params={"limit": 0}, expect=422)
    for method in ("GET", "DELETE"):
        api.call(method, f"/workers/{worker_id}", expect=404)
        api.call(method, f"/workers/{'x' * 201}", expect=422)


def refuse(api: Api, queue: str) -> None:
    client = api.client
    client.delete(f"/queues/{queue}")
    for method, path in (("PUT", f"/queues/{queue}"), ("POST", f"/queues/{queue}/messages"), ("POST", f"/queues/{queue}/leases")):
        client.request(method, path, content=b"{}")
        client.request(method, path, json={"unknown_field": 1})
        client.request(method, path, content=b" " * (8 * 1024 * 1024 + 1), headers={"content-type": "application/json"})
    for verb in ("beat", "ack", "nack", "release"):
        client.post(f"/{verb}", content=b"{}")
        client.post(f"/{verb}", json={"unknown_field": 1})
        client.post(f"/{verb}", content=b" " * (8 * 1024 * 1024 + 1), headers={"content-type": "application/json"})
    client.post("/queues/nope/messages", json={"messages": [{"body": 1}]})
    client.post("/queues/nope/leases", json={"worker_id": "w"})
    for path in (
        "/queues/nope",
        "/queues/nope/messages",
        "/messages/0",
        "/messages/0/checkpoints",
        "/leases?queue=nope",
        "/stats?queue=nope",
    ):
        client.get(path)
    for path in (
        "/queues/%20",
        "/queues/%20/messages",
        "/messages/x",
        "/messages/x/checkpoints",
        "/leases?limit=0",
        "/queues?limit=0",
        "/stats?queue=",
    ):
        client.get(path)
    client.delete("/queues/nope")
    client.delete("/queues/%20")


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_every_documented_answer_has_been_seen_and_fits(seen: set[tuple[str, int]], operation: Operation) -> None:
    documented = {int(status) for status in operation.spec["responses"]}
    # tests/api/test_health.py sees to 503.
    assert documented - {503} == {status for of, status in seen if of == str(operation)} - {503}
