"""The interface as tests call it: each call is the HTTP call it is named for, and fails unless it is answered as expected."""

from typing import Any

import httpx

Json = Any


def without_figures(queue: Json) -> Json:
    """Return a queue as it was answered, without its figures: they come when they are counted, which may be in the middle of a test."""
    return queue | {"figures": None}


class Api:
    """Calls over one httpx client."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def call(self, method: str, path: str, body: Json = None, *, expect: int = 200, **options: Any) -> Json:
        answer = (
            self.client.request(method, path, json=body, **options) if body is not None else self.client.request(method, path, **options)
        )
        assert answer.status_code == expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def put_queue(self, name: str, **config: Json) -> Json:
        answer = self.client.put(f"/queues/{name}", json=config)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def send(self, queue: str, *bodies: Json, **options: Json) -> list[str]:
        """Send one message per body, all with the same options, and return their ids."""
        answer = self.call("POST", f"/queues/{queue}/messages", {"messages": [{"body": body, **options} for body in bodies]}, expect=201)
        return [message["id"] for message in answer["messages"]]

    def claim(self, queue: str, worker_id: str = "worker", **options: Json) -> list[Json]:
        return list(self.call("POST", f"/queues/{queue}/leases", {"worker_id": worker_id, **options})["leases"])

    def claim_one(self, queue: str, worker_id: str = "worker", **options: Json) -> Json:
        (lease,) = self.claim(queue, worker_id, **options)
        return lease

    def beat(self, *receipts: str, **options: Json) -> list[Json]:
        return self._on_leases("/beat", receipts, options)

    def ack(self, *receipts: str, **options: Json) -> list[Json]:
        return self._on_leases("/ack", receipts, options)

    def nack(self, *receipts: str, **options: Json) -> list[Json]:
        return self._on_leases("/nack", receipts, options)

    def release(self, *receipts: str) -> list[Json]:
        return self._on_leases("/release", receipts, {})

    def message(self, message_id: str) -> Json:
        return self.call("GET", f"/messages/{message_id}")

    def checkpoints(self, message_id: str) -> list[Json]:
        return list(self.call("GET", f"/messages/{message_id}/checkpoints")["items"])

    def _on_leases(self, path: str, receipts: tuple[str, ...], options: dict[str, Json]) -> list[Json]:
        return list(self.call("POST", path, {"leases": [{"receipt": receipt, **options} for receipt in receipts]})["results"])
