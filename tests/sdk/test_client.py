"""Clients over real connections to a scripted service."""

import asyncio
import base64
import inspect
import logging
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sdk.scripted_service import Answer, Break, Received, ScriptedService, Trickle, lease, problem, verdicts

import leasebeat
from leasebeat import AsyncClient, Client, RetryPolicy
from leasebeat._calls.leases import claim
from leasebeat._http import Limit, Options

HEALTHY = Answer({"status": "ok"})
SENT = Answer({"messages": [{"id": "1", "status": "pending", "duplicate": False}]}, 201)
REDRIVEN = Answer({"redriven": 1, "more": False})

Use = Callable[[Any], Any]
"""What to call, on either client."""


def healthz(client: Any) -> Any:
    return client.healthz()


def send(client: Any) -> Any:
    return client.send("q", 1)


def redrive(client: Any) -> Any:
    return client.redrive("q", limit=1)


def call_sync(url: str, retry: RetryPolicy, use: Use, **settings: Any) -> object:
    with Client(url, retry=retry, **settings) as client:
        return use(client)


def call_async(url: str, retry: RetryPolicy, use: Use, **settings: Any) -> object:
    async def call() -> object:
        async with AsyncClient(url, retry=retry, **settings) as client:
            return await use(client)

    return asyncio.run(call())


Caller = Callable[..., object]
both = pytest.mark.parametrize("call", [call_sync, call_async])


@pytest.mark.scar(24)
@both
def test_a_broken_connection_is_replaced_by_a_fresh_one_once(call: Caller, service: ScriptedService) -> None:
    service.on("GET", "/healthz", Break(), HEALTHY)
    assert call(service.url, RetryPolicy(), healthz) == leasebeat.Health(status="ok")
    first, second = service.asked("/healthz")
    assert first.connection != second.connection


@pytest.mark.scar(24)
def test_the_repeat_uses_no_other_kept_connection(service: ScriptedService) -> None:
    """When one kept connection is dead without having said so, the others may well be too."""

    def once_all_have_asked(_request: Received) -> Answer:
        service.wait_for("/healthz", 3)
        return HEALTHY

    service.on("GET", "/healthz", once_all_have_asked)
    with Client(service.url) as client:
        threads = [threading.Thread(target=client.healthz) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = {request.connection for request in service.asked("/healthz")}
        service.on("GET", "/healthz", lambda request: Break() if request.connection in kept else HEALTHY)
        assert client.healthz().status == "ok"
    assert len(kept) == 3


@both
def test_a_second_break_is_raised(call: Caller, service: ScriptedService) -> None:
    service.on("GET", "/healthz", Break())
    with pytest.raises(leasebeat.ServiceUnreachableError) as caught:
        call(service.url, RetryPolicy(), healthz)
    assert (caught.value.maybe_processed, caught.value.broken) == (True, True)
    assert len(service.asked("/healthz")) == 2


@both
def test_a_limited_redrive_is_not_repeated_once_it_may_have_been_processed(call: Caller, service: ScriptedService) -> None:
    service.on("POST", "/queues/q/redrive", Break(), REDRIVEN)
    with pytest.raises(leasebeat.ServiceUnreachableError) as caught:
        call(service.url, RetryPolicy(), redrive)
    assert caught.value.maybe_processed
    assert len(service.asked("/queues/q/redrive")) == 1


@both
def test_a_repeated_send_keeps_its_key(call: Caller, service: ScriptedService) -> None:
    service.on("POST", "/queues/q/messages", Break(), problem(503, "overloaded", headers={"retry-after": "0"}), SENT)
    assert call(service.url, RetryPolicy(), send) == leasebeat.SentMessage(id="1", status="pending", duplicate=False)
    sends = service.asked("/queues/q/messages")
    assert len(sends) == 3
    assert len({send.headers["idempotency-key"] for send in sends}) == 1
    assert {send.headers["content-type"] for send in sends} == {"application/json"}


@both
def test_a_refused_connection_says_that_nothing_was_processed(call: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(leasebeat.ServiceUnreachableError) as caught:
        call(f"http://127.0.0.1:{port}", RetryPolicy(), send)
    assert (caught.value.maybe_processed, caught.value.broken) == (False, True)


@both
def test_a_503_is_waited_out_as_it_asks(call: Caller, service: ScriptedService) -> None:
    service.on("GET", "/healthz", problem(503, "overloaded", headers={"retry-after": "1"}), HEALTHY)
    started = time.monotonic()
    assert call(service.url, RetryPolicy(), healthz) == leasebeat.Health(status="ok")
    assert time.monotonic() - started >= 1


@both
def test_a_503_is_raised_when_its_tries_are_used_up(call: Caller, service: ScriptedService) -> None:
    service.on("GET", "/healthz", problem(503, "database-unavailable", headers={"retry-after": "0"}))
    with pytest.raises(leasebeat.UnavailableError) as caught:
        call(service.url, RetryPolicy(unavailable=3), healthz)
    assert (caught.value.code, caught.value.retry_after) == ("database-unavailable", 0.0)
    assert len(service.asked("/healthz")) == 4


@pytest.mark.parametrize("headers", [{"retry-after": "60"}, {}, {"retry-after": "soon"}])
def test_a_503_that_is_too_long_or_says_nothing_is_raised_at_once(headers: dict[str, str], service: ScriptedService) -> None:
    service.on("GET", "/healthz", problem(503, "overloaded", headers=headers), HEALTHY)
    with pytest.raises(leasebeat.UnavailableError):
        call_sync(service.url, RetryPolicy(max_retry_after=5), healthz)
    assert len(service.asked("/healthz")) == 1


def test_a_503_does_not_repeat_a_limited_redrive(service: ScriptedService) -> None:
    service.on("POST", "/queues/q/redrive", problem(503, "database-unavailable", headers={"retry-after": "0"}), REDRIVEN)
    with pytest.raises(leasebeat.UnavailableError):
        call_sync(service.url, RetryPolicy(), redrive)
    assert len(service.asked("/queues/q/redrive")) == 1


@both
@pytest.mark.parametrize(("worker_id", "path"), [("..", "/workers/%2E%2E"), ("a/b?c#d é", "/workers/a%2Fb%3Fc%23d%20%C3%A9")])
def test_a_workers_name_arrives_as_one_part_of_the_path(call: Caller, worker_id: str, path: str, service: ScriptedService) -> None:
    service.on("DELETE", path, Answer(status=204))
    assert call(service.url, RetryPolicy(), lambda client: client.delete_worker(worker_id)) is None
    assert [request.path for request in service.received] == [path]


def test_other_errors_are_not_repeated(service: ScriptedService) -> None:
    service.on("GET", "/healthz", problem(500, "internal"), HEALTHY)
    with pytest.raises(leasebeat.ServerError):
        call_sync(service.url, RetryPolicy(), healthz)
    assert len(service.asked("/healthz")) == 1


def test_a_call_out_of_time_is_not_repeated(service: ScriptedService) -> None:
    service.on("GET", "/healthz", Answer({"status": "ok"}, delay=90.0))
    with Client(service.url, timeout=0.1) as client, pytest.raises(leasebeat.ServiceUnreachableError) as caught:
        client.healthz()
    assert (caught.value.maybe_processed, caught.value.broken) == (True, False)
    assert len(service.wait_for("/healthz")) == 1


@pytest.mark.timed
@pytest.mark.parametrize(
    ("call", "answer"),
    [(call_sync, Trickle()), (call_sync, Trickle(of_head=True)), (call_async, Trickle()), (call_async, Trickle(of_head=True))],
    ids=["sync", "sync-head", "async", "async-head"],
)
def test_an_answer_that_trickles_in_gets_the_time_of_a_call_and_no_more(call: Caller, answer: Trickle, service: ScriptedService) -> None:
    """Each byte is in time, so no time-out of a step ends the call."""
    answer.left.clear()
    service.on("GET", "/healthz", answer)
    started = time.monotonic()
    with pytest.raises(leasebeat.ServiceUnreachableError) as caught:
        call(service.url, RetryPolicy(), healthz, timeout=0.5)
    assert 0.4 < time.monotonic() - started < 30
    assert (caught.value.maybe_processed, caught.value.broken) == (True, False)
    assert answer.left.wait(60), "the connection is not kept"
    assert len(service.asked("/healthz")) == 1


def test_an_answer_that_is_there_is_taken_however_late() -> None:
    """As in a process that stood still meanwhile."""
    limit = Limit(0.0)
    assert list(limit.in_time([b"whole"])) == [b"whole"]
    with pytest.raises(Exception, match="did not end within"):
        list(limit.in_time([b"a", b"part", b"after"]))


@pytest.mark.parametrize(("wait", "read"), [(0.0, 10.0), (20.0, 35.0)])
@pytest.mark.usefixtures("clock")
def test_a_parked_claim_may_take_its_wait_and_a_margin(wait: float, read: float) -> None:
    limit = Options(base_url="http://service", timeout=10.0).limit(claim("q", worker_id="w", wait=wait))
    assert (limit["connect"], limit["read"]) == (10.0, read)


def test_a_parked_claim_is_waited_for(service: ScriptedService) -> None:
    service.on("POST", "/queues/q/leases", Answer({"leases": []}, delay=0.3), Answer({"leases": []}, delay=90))
    with Client(service.url, timeout=0.1) as client:
        assert client.claim("q", worker_id="w", wait=20) == ()
        with pytest.raises(leasebeat.ServiceUnreachableError):
            client.claim("q", worker_id="w")


def test_a_lease_that_the_database_refuses_to_settle_is_no_success(service: ScriptedService) -> None:
    service.on("POST", "/ack", verdicts("error", late=False))
    with Client(service.url) as client, pytest.raises(leasebeat.ServerError) as caught:
        client.ack("secret-1")
    assert caught.value.code == "row-refused"
    assert "secret-1" not in str(caught.value)


@pytest.mark.scar(19, 24)
def test_a_repeated_claim_keeps_its_name(service: ScriptedService) -> None:
    service.on("POST", "/queues/q/leases", Break(), Answer({"leases": [lease()]}))
    with Client(service.url) as client:
        (held,) = client.claim("q", worker_id="w")
    first, second = service.asked("/queues/q/leases")
    assert first.body["claim_id"] == second.body["claim_id"]
    assert 30 < held.remaining() <= 60


def test_calls_share_a_kept_connection_and_say_who_they_are(service: ScriptedService) -> None:
    service.on("GET", "/healthz", HEALTHY)
    with Client(service.url, headers={"x-tenant": "a"}) as client:
        client.healthz()
        client.healthz()
    first, second = service.asked("/healthz")
    assert first.connection == second.connection
    assert first.headers["user-agent"] == f"leasebeat-python/{leasebeat.__version__}"
    assert first.headers["x-tenant"] == "a"


def test_a_client_is_shared_by_threads(service: ScriptedService) -> None:
    service.on("POST", "/ack", verdicts("acked", late=False))
    acked: list[str] = []
    with Client(service.url) as client:
        threads = [threading.Thread(target=lambda: acked.extend(client.ack("r").status for _ in range(5))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert acked == ["acked"] * 40


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_use_its_parents_connection(service: ScriptedService) -> None:
    service.on("GET", "/healthz", HEALTHY)
    with Client(service.url) as client:
        client.healthz()
        child = multiprocessing.get_context("fork").Process(target=client.healthz)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        client.healthz()
    before, in_child, after = service.asked("/healthz")
    assert in_child.connection != before.connection
    assert after.connection == before.connection


def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(kind: type) -> dict[str, inspect.Signature]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(member) for name, member in members if not name.startswith("_") and name != "close"}

    assert calls(Client) == calls(AsyncClient)
    assert len(calls(Client)) == 33
    assert list(inspect.signature(Client.ack).parameters) == ["self", "lease", "output"]
    assert "Complete a message" in (Client.ack.__doc__ or "")


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://localhost"])
def test_an_address_without_a_scheme_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Client(url)


@both
def test_a_password_in_the_address_is_sent_and_shown_nowhere(
    call: Caller, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    service.on("GET", "/healthz", HEALTHY, Break())
    url = service.url.replace("//", "//worker:s3cret%21@")
    with caplog.at_level(logging.DEBUG):
        assert call(url, RetryPolicy(), healthz) == leasebeat.Health(status="ok")
        with pytest.raises(leasebeat.ServiceUnreachableError) as caught:
            call(url, RetryPolicy(), healthz)
    assert service.asked("/healthz")[0].headers["authorization"] == f"Basic {base64.b64encode(b'worker:s3cret!').decode()}"
    assert "s3cret" not in caplog.text + str(caught.value) + repr(Options(base_url=url))


@pytest.mark.parametrize("url", ["http://worker:s3/cret@service", "ftp://worker:s3cret@service"])
def test_an_address_that_is_refused_is_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        Client(url)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s3cret\n"},
        {"authorization": "Bearer s3\r\ncret: 1"},
        {"authorization": " s3cret"},
        {"authorization": "s3cr\u00e9t"},
        {"authorization": "s3cret\0"},
        {"authorization: Bearer s3cret": ""},
        {"s3cret ": "1"},
        {"": "s3cret"},
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_header_that_cannot_be_sent_is_refused_at_once_and_not_quoted(kind: type[Client | AsyncClient], headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header") as caught:
        kind("http://service", headers=headers)
    assert "s3" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


@both
def test_any_header_that_can_be_sent_is(call: Caller, service: ScriptedService) -> None:
    service.on("GET", "/healthz", HEALTHY)
    headers = {"x-empty": "", "X_Odd~1": 'a  b; "c"'}
    call(service.url, RetryPolicy(), healthz, headers=headers)
    (asked,) = service.received
    assert {name: asked.headers[name.lower()] for name in headers} == headers


def test_a_base_path_is_kept(service: ScriptedService) -> None:
    service.on("GET", "/queues-service/healthz", HEALTHY)
    with Client(f"{service.url}/queues-service/") as client:
        assert client.healthz().status == "ok"


def test_extend_visibility_of_a_held_message_beats(service: ScriptedService) -> None:
    def beat(request: Received) -> Answer:
        status = "extended" if len(service.asked("/beat")) == 1 else "lost"
        return verdicts(status, expires_at=None, expires_in=None, next_beat_in=None)(request)

    service.on("POST", "/queues/q/leases", Answer({"leases": [lease()]}))
    service.on("POST", "/beat", beat)
    heartbeat, extender = leasebeat.Heartbeat(), leasebeat.LeaseExtender(leasebeat.LeaseExtenderConfig(interval=0))
    with Client(service.url) as client:
        held = leasebeat.HeldMessage(client, client.claim("q", worker_id="w")[0], worker_id="w")
        with extender.attach(held, heartbeat):
            heartbeat.beat()
            assert not extender.lost.is_set()
            heartbeat.beat()
            assert extender.lost.is_set()
    assert service.asked("/beat")[0].body == {"worker_id": "w", "leases": [{"receipt": "secret-1", "progress": 1}]}
    assert "secret-1" not in repr(held)
