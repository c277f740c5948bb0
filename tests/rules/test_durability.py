"""What was answered is committed: no crash, of the service or of Postgres, loses it or undoes it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest
from harness.api import Api, Json
from harness.postgres_of_own import OwnPostgres
from harness.server import Server
from harness.wait import until


class RefusedError(Exception):
    """A call was answered 503, and promises nothing."""


class Load:
    """Workers that send, claim and ack as fast as they can, and remember what was answered.

    What is not answered, or refused with 503, promises nothing. Any other answer than the one that is expected fails the test.
    """

    def __init__(self, api: Api) -> None:
        self.sent: list[str] = []
        self.acked: list[str] = []
        self._client = api.client
        self._over = threading.Event()

    @contextmanager
    def running(self, workers: int) -> Iterator[None]:
        with ThreadPoolExecutor(2 * workers) as pool:
            running = [pool.submit(self._keep, step) for step in (self._send, self._work) for _ in range(workers)]
            try:
                yield
            finally:
                self._over.set()
                for each in running:
                    each.result()

    def until_acked(self, number: int) -> None:
        """Wait until so many more messages are acked."""
        enough = len(self.acked) + number
        until(lambda: len(self.acked) >= enough)

    def _keep(self, step: Callable[[], None]) -> None:
        while not self._over.is_set():
            with suppress(httpx.TransportError, RefusedError):
                step()

    def _call(self, path: str, body: Json, expect: int = 200) -> Json:
        answer = self._client.post(path, json=body)
        if answer.status_code == 503:
            raise RefusedError
        assert answer.status_code == expect, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def _send(self) -> None:
        answer = self._call("/queues/default/messages", {"messages": [{"body": n} for n in range(3)]}, expect=201)
        self.sent += [message["id"] for message in answer["messages"]]

    def _work(self) -> None:
        claim = {"worker_id": "worker", "max_messages": 2, "wait": 0.1, "visibility_timeout": 120}
        leases = self._call("/queues/default/leases", claim)["leases"]
        if not leases:
            return
        acks = self._call("/ack", {"leases": [{"receipt": lease["receipt"]} for lease in leases]})["results"]
        assert acks == [{"receipt": lease["receipt"], "status": "acked", "late": False} for lease in leases]
        self.acked += [lease["message"]["id"] for lease in leases]


def check_answers_hold(api: Api, load: Load) -> None:
    assert len(load.sent) >= 50
    assert len(load.acked) >= 50
    statuses = {message_id: api.message(message_id)["status"] for message_id in load.sent}
    assert set(statuses.values()) <= {"pending", "in_progress", "completed"}
    assert {statuses.get(message_id) or api.message(message_id)["status"] for message_id in load.acked} == {"completed"}
    assert len(load.acked) == len(set(load.acked))
    while leases := api.claim("default", max_messages=1000):
        assert {lease["message"]["id"] for lease in leases}.isdisjoint(load.acked)


@pytest.mark.rule(7)
def test_kill_9_of_the_service_under_load_loses_nothing_that_was_answered(postgres_of_own: OwnPostgres) -> None:
    with Server(postgres_of_own.url) as first:
        load = Load(first.api)
        with load.running(workers=6):
            load.until_acked(200)
            first.kill()
    with Server(postgres_of_own.url) as second:
        check_answers_hold(second.api, load)


@pytest.mark.scar(27)
@pytest.mark.rule(7, 8)
def test_a_crash_of_postgres_under_load_loses_nothing_that_was_answered_and_the_service_recovers(postgres_of_own: OwnPostgres) -> None:
    with Server(postgres_of_own.url) as server:
        load = Load(server.api)
        with load.running(workers=6):
            load.until_acked(200)
            postgres_of_own.crash()
            until(lambda: not server.ready)
            postgres_of_own.start()
            until(lambda: server.ready)
            load.until_acked(20)
        check_answers_hold(server.api, load)
        server.api.send("default", "after", priority=10)
        server.api.claim_one("default", visibility_timeout=0.2)
        assert server.api.claim_one("default", wait=40)["generation"] == 2


@pytest.mark.rule(7)
def test_while_postgres_is_away_calls_are_refused_with_503_and_nothing_hangs(postgres_of_own: OwnPostgres) -> None:
    with Server(postgres_of_own.url) as server:
        server.api.send("default", "work")
        receipt = server.api.claim_one("default")["receipt"]
        postgres_of_own.stop()
        client = server.api.client
        calls = [
            ("/queues/default/messages", {"messages": [{"body": 1}]}),
            ("/queues/default/leases", {"worker_id": "w"}),
            *((path, {"leases": [{"receipt": receipt}]}) for path in ("/beat", "/ack", "/nack", "/release")),
        ]
        for path, body in calls:
            answer = client.post(path, json=body, timeout=60)
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "database-unavailable", "1")
        assert client.get("/healthz").status_code == 200
        postgres_of_own.start()
        until(lambda: server.ready)
        assert server.api.ack(receipt)[0]["status"] == "acked"


@pytest.mark.rule(7)
def test_sigterm_under_load_answers_what_it_took_and_ends_cleanly(postgres_of_own: OwnPostgres) -> None:
    with Server(postgres_of_own.url) as server:
        load = Load(server.api)
        with load.running(workers=4):
            load.until_acked(100)
            assert server.stop() == 0
        assert "Traceback" not in server.log
    with Server(postgres_of_own.url) as second:
        check_answers_hold(second.api, load)
