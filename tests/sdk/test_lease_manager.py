"""`LeaseManager` on a real service: what an id stands for, what is refused, and what is remembered for how long."""

import gc
import logging
import os
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness.api import Api
from harness.postgres import RunOut
from harness.server import Server
from harness.wait import until
from sdk.running import program_process
from sdk.scripted_service import Answer, Break, Reaction, Received, ScriptedService, Step, beats, lease, message, problem, verdicts

from leasebeat import (
    ApiError,
    Client,
    Lease,
    LeaseCancelledError,
    LeaseConflictError,
    LeaseExpiredError,
    LeaseSettledError,
    NotFoundError,
    ServerError,
    ServiceUnreachableError,
    _lease_manager,
)
from leasebeat._lease_manager import LeaseManager

LONG = 40


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def worker_id() -> str:
    return f"worker-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def manager(client: Client, queue: str, worker_id: str) -> LeaseManager:
    return LeaseManager(client, worker_id, queue=queue)


def acquire(manager: LeaseManager, *, seconds: float | None = 300) -> Lease:
    acquired = manager.acquire_lease(seconds, wait=LONG)
    assert acquired is not None
    return acquired


# --- acquire


def test_a_lease_shows_its_work_item(manager: LeaseManager, client: Client, queue: str) -> None:
    sent = client.send(queue, {"file": "a.wav"})
    acquired = acquire(manager)
    assert (acquired.work_item_id, acquired.input_data) == (sent.id, {"file": "a.wav"})


def test_no_work_is_none(manager: LeaseManager) -> None:
    assert manager.acquire_lease() is None


def test_the_duration_is_the_callers_or_the_queues(manager: LeaseManager, client: Client, queue: str) -> None:
    client.put_queue(queue, visibility_timeout=1800)
    for _ in range(3):
        client.send(queue, "work")
    assert 290 < acquire(manager).expires_in <= 300
    assert 20 < acquire(manager, seconds=30).expires_in <= 30
    assert 1790 < acquire(manager, seconds=None).expires_in <= 1800


def test_filters_by_work_type_and_by_task(manager: LeaseManager, client: Client, queue: str) -> None:
    for work_type in ("scan", "transcode"):
        for task_id in ("task-1", "task-2"):
            client.send(queue, [work_type, task_id], work_type=work_type, task_id=task_id)
    both = manager.acquire_lease(work_type_filter="transcode", task_id_filter="task-2")
    by_type = manager.acquire_lease(300, "transcode")
    by_task = manager.acquire_lease(task_id_filter="task-2")
    taken = [each.input_data for each in (both, by_type, by_task) if each]
    assert taken == [["transcode", "task-2"], ["transcode", "task-1"], ["scan", "task-2"]]
    assert manager.acquire_lease(work_type_filter="transcode") is None


def test_hears_that_the_worker_is_drained(manager: LeaseManager, client: Client, queue: str, worker_id: str) -> None:
    manager.acquire_lease()
    assert manager.draining is False
    until(lambda: [each for each in client.list_workers(limit=1000).items if each.worker_id == worker_id])
    client.drain_worker(worker_id)
    client.send(queue, "work")
    assert manager.acquire_lease() is None
    assert manager.draining is True


# --- acquire, though no answer comes

CLAIM = "/queues/default/leases"
NO_WORK = Answer({"leases": [], "waited": 0.0, "drain": False})
FAILS = problem(500, "internal")


@pytest.fixture
def asking(service: ScriptedService) -> Iterator[LeaseManager]:
    """A manager of a scripted service."""
    with Client(service.url) as client:
        yield LeaseManager(client, "worker-1")


def claim_ids(service: ScriptedService) -> list[str]:
    return [request.body["claim_id"] for request in service.asked(CLAIM)]


def fail_to_acquire(manager: LeaseManager, **wanted: Any) -> None:
    with pytest.raises((ApiError, ServiceUnreachableError)):
        manager.acquire_lease(**wanted)


@pytest.mark.scar(19, 31)
@pytest.mark.parametrize(
    "failure", [Break(), FAILS, problem(503, "overloaded"), problem(408, "late"), problem(429, "busy"), Answer([]), Answer({}, 302)]
)
def test_a_claim_without_an_answer_is_repeated_by_its_name(failure: Reaction, service: ScriptedService, asking: LeaseManager) -> None:
    """It may have been granted a lease, which nobody else can have before it runs out."""
    failures = 4 if isinstance(failure, Break) else 2  # a connection that breaks is replaced once, within a call
    service.on("POST", CLAIM, *[failure] * failures, Answer({"leases": [lease()]}), NO_WORK)
    for _ in range(2):
        fail_to_acquire(asking)
    assert asking.acquire_lease(wait=1) is not None
    assert asking.acquire_lease() is None
    *repeated, after = claim_ids(service)
    assert len(set(repeated)) == 1
    assert after != repeated[0]


@pytest.mark.parametrize("refusal", [problem(403, "forbidden"), problem(404, "queue-not-found"), problem(422, "invalid-request")])
def test_a_claim_that_is_refused_is_granted_nothing(refusal: Answer, service: ScriptedService, asking: LeaseManager) -> None:
    service.on("POST", CLAIM, refusal, NO_WORK)
    fail_to_acquire(asking)
    asking.acquire_lease()
    first, second = claim_ids(service)
    assert first != second


def test_a_claim_for_other_work_has_a_name_of_its_own(service: ScriptedService, asking: LeaseManager) -> None:
    """Or it would be given what it did not ask for."""
    service.on("POST", CLAIM, FAILS, FAILS, FAILS, NO_WORK)
    others: list[dict[str, Any]] = [{"task_id_filter": "a"}, {"work_type_filter": "a"}, {"lease_duration_seconds": 30}]
    for wanted in others:
        fail_to_acquire(asking, **wanted)
    for wanted in reversed(others):
        asking.acquire_lease(**wanted)
    names = claim_ids(service)
    assert len(set(names)) == 3
    assert names[:3] == names[:2:-1]


def test_a_thread_does_not_repeat_what_another_one_is_repeating(service: ScriptedService, asking: LeaseManager) -> None:
    """Both would hold one lease."""
    both_asked = threading.Event()

    def wait(_request: Received) -> Answer:
        assert both_asked.wait(LONG)
        return NO_WORK

    service.on("POST", CLAIM, FAILS, wait, NO_WORK)
    fail_to_acquire(asking)
    repeating = threading.Thread(target=asking.acquire_lease)
    repeating.start()
    service.wait_for(CLAIM, 2)
    asking.acquire_lease()
    both_asked.set()
    repeating.join()
    failed, repeated, other = claim_ids(service)
    assert failed == repeated != other


def test_each_of_several_claims_without_an_answer_is_repeated_once(service: ScriptedService, asking: LeaseManager) -> None:
    together = threading.Barrier(2)

    def fail(_request: Received) -> Answer:
        together.wait(LONG)
        return FAILS

    service.on("POST", CLAIM, fail, fail, NO_WORK)
    with ThreadPoolExecutor(2) as pool:
        for failing in [pool.submit(asking.acquire_lease) for _ in range(2)]:
            assert isinstance(failing.exception(), ServerError)
    for _ in range(3):
        asking.acquire_lease()
    names = claim_ids(service)
    assert set(names[:2]) == set(names[2:4])
    assert len(set(names)) == 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_repeat_what_its_parent_asked_for(service: ScriptedService, asking: LeaseManager) -> None:
    service.on("POST", CLAIM, FAILS, NO_WORK)
    fail_to_acquire(asking)
    child = os.fork()
    if child == 0:
        try:
            asking.acquire_lease()
            asking.give_back_unanswered()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asking.acquire_lease()
    of_parent, of_child, repeated = claim_ids(service)
    assert of_parent == repeated != of_child


def test_what_a_claim_without_an_answer_was_granted_is_given_back(service: ScriptedService, asking: LeaseManager) -> None:
    service.on("POST", CLAIM, FAILS, Answer({"leases": [lease("granted")]}))
    service.on("POST", "/release", verdicts("released"))
    fail_to_acquire(asking)
    for _ in range(2):
        asking.give_back_unanswered()
    assert len(set(claim_ids(service))) == 1
    assert [request.body["leases"] for request in service.asked("/release")] == [[{"receipt": "granted"}]]


def test_a_claim_without_an_answer_that_cannot_be_asked_again_is_asked_once_more_later(
    service: ScriptedService, asking: LeaseManager
) -> None:
    service.on("POST", CLAIM, FAILS, FAILS, NO_WORK)
    fail_to_acquire(asking)
    asking.give_back_unanswered()
    assert len(service.asked(CLAIM)) == 2
    for _ in range(2):
        asking.give_back_unanswered()
    first, *again = claim_ids(service)
    assert again == [first] * 2


@pytest.mark.parametrize("refusal", [verdicts("expired"), FAILS])
def test_a_lease_that_cannot_be_given_back_is_told_of(
    refusal: Step, service: ScriptedService, asking: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    service.on("POST", CLAIM, FAILS, Answer({"leases": [lease("secret-9")]}))
    service.on("POST", "/release", refusal)
    fail_to_acquire(asking)
    with caplog.at_level(logging.INFO, "leasebeat"):
        asking.give_back_unanswered()
    assert "What was granted too late could not be released" in caplog.text
    assert "secret-9" not in caplog.text


# --- renew


def test_a_renewal_extends_as_the_queue_says(manager: LeaseManager, client: Client, api: Api, queue: str) -> None:
    client.put_queue(queue, extension=120, beat_interval=10)
    client.send(queue, "work")
    acquired = acquire(manager, seconds=30)
    assert manager.renew_lease(acquired.work_item_id, 999, progress=3, detail={"step": "upload"}) is True
    (held,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    assert 110 < held["expires_in"] <= 120
    assert (held["progress"], held["detail"]) == (3, {"step": "upload"})


def test_a_renewal_within_the_interval_is_a_success(manager: LeaseManager, client: Client, queue: str) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    assert [manager.renew_lease(acquired.work_item_id) for _ in range(2)] == [True, True]


@pytest.mark.scar(12)
def test_a_renewal_without_the_progress_that_the_queue_wants_is_none(manager: LeaseManager, client: Client, queue: str) -> None:
    client.put_queue(queue, beat_interval=0, progress_required=True)
    client.send(queue, "work")
    acquired = acquire(manager)
    assert [manager.renew_lease(acquired.work_item_id, progress=progress) for progress in (1, 1, 2)] == [True, False, True]


def test_a_lease_that_ran_out_is_not_renewed_though_nobody_swept_it(
    manager: LeaseManager, client: Client, queue: str, run_out: RunOut
) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    run_out(acquired.work_item_id)
    with pytest.raises(LeaseExpiredError):
        manager.renew_lease(acquired.work_item_id)


def test_a_lease_that_another_worker_holds_is_not_renewed(manager: LeaseManager, client: Client, api: Api, queue: str) -> None:
    client.send(queue, "work")
    stale = acquire(manager, seconds=0.1)
    holder = LeaseManager(client, "somebody-else", queue=queue)
    taken = acquire(holder)
    (before,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    with pytest.raises(LeaseConflictError):
        manager.renew_lease(stale.work_item_id)
    (after,) = api.call("GET", "/leases", params={"queue": queue})["items"]
    assert (after["worker_id"], after["expires_at"]) == ("somebody-else", before["expires_at"])
    assert holder.release_lease(taken.work_item_id)


# --- release


@pytest.mark.parametrize(
    ("outcome", "status", "output", "error"),
    [
        ({"output_data": {"n": 1}}, "completed", {"n": 1}, None),
        ({"success": False, "error": "disk full"}, "pending", None, "disk full"),
        ({"success": False, "error": "disk full", "delay": 60}, "scheduled", None, "disk full"),
        ({"success": False, "error": "no such file", "retryable": False}, "failed", None, "no such file"),
    ],
)
def test_a_release_completes_or_fails_the_attempt(
    outcome: dict[str, object], status: str, output: object, error: str | None, manager: LeaseManager, client: Client, queue: str
) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    assert manager.release_lease(acquired.work_item_id, **outcome) is True  # type: ignore[arg-type]  # by name
    released = client.get_message(acquired.work_item_id)
    assert (released.status, released.output, released.error) == (status, output, error)
    assert released.attempt_count == int(status != "completed")


@pytest.mark.scar(1, 3)
@pytest.mark.parametrize("success", [True, False])
def test_a_stale_release_is_refused_aloud_and_changes_nothing(success: bool, manager: LeaseManager, client: Client, queue: str) -> None:
    client.send(queue, "work")
    stale = acquire(manager, seconds=0.1)
    holder = LeaseManager(client, "somebody-else", queue=queue)
    taken = acquire(holder)
    holder.release_lease(taken.work_item_id, output_data="the winner's")
    before = client.get_message(stale.work_item_id)
    with pytest.raises(LeaseConflictError):
        manager.release_lease(stale.work_item_id, success, "the loser's", "the loser's error")
    assert client.get_message(stale.work_item_id) == before
    assert (before.status, before.output, before.attempt_count) == ("completed", "the winner's", 1)


def test_work_done_late_is_accepted_while_nobody_else_is_at_it(manager: LeaseManager, client: Client, queue: str) -> None:
    client.send(queue, "work")
    acquired = acquire(manager, seconds=0.1)
    until(lambda: client.get_message(acquired.work_item_id).status == "pending")
    with pytest.raises(LeaseExpiredError):
        manager.renew_lease(acquired.work_item_id)
    assert manager.release_lease(acquired.work_item_id, output_data="late")
    assert client.get_message(acquired.work_item_id).output == "late"


# --- how long a call may take


Settle = Callable[[LeaseManager, str], bool]


def hang_once(ended: threading.Event) -> Callable[[Received], Break]:
    def answer(_request: Received) -> Break:
        ended.wait(LONG)
        return Break()

    return answer


def renew(manager: LeaseManager, work_item_id: str) -> bool:
    return manager.renew_lease(work_item_id)


def complete(manager: LeaseManager, work_item_id: str) -> bool:
    return manager.release_lease(work_item_id)


def fail(manager: LeaseManager, work_item_id: str) -> bool:
    return manager.release_lease(work_item_id, success=False)


@pytest.mark.scar(9)
@pytest.mark.parametrize(("call", "path"), [(renew, "/beat"), (complete, "/ack"), (fail, "/nack")])
def test_a_call_that_hangs_is_repeated_while_the_lease_lasts(call: Settle, path: str, service: ScriptedService) -> None:
    """The lease as it stands once it was extended beyond the end that it was granted with, which has come."""
    ended = threading.Event()
    answers = {"/beat": beats(expires_in=9.0), "/ack": verdicts("acked", late=False), "/nack": verdicts("requeued")}
    service.on("POST", "/queues/default/leases", Answer({"leases": [lease(expires_in=0.0)], "waited": 0.0, "drain": False}))
    service.on("POST", "/beat", answers["/beat"])
    with Client(service.url, timeout=LONG) as client:
        manager = LeaseManager(client, "worker-1")
        acquired = acquire(manager)
        manager.renew_lease(acquired.work_item_id)
        before = len(service.asked(path))
        service.on("POST", path, hang_once(ended), answers[path])
        called_at = time.monotonic()
        assert call(manager, acquired.work_item_id) is True
        assert time.monotonic() - called_at < 30
    ended.set()
    assert len(service.asked(path)) == before + 2


@pytest.mark.timed
def test_a_slow_answer_is_waited_for_once_the_lease_is_long(service: ScriptedService) -> None:
    service.on("POST", "/queues/default/leases", Answer({"leases": [lease(expires_in=1.0)], "waited": 0.0, "drain": False}))
    service.on("POST", "/beat", beats(expires_in=60.0))
    service.on(
        "POST", "/ack", lambda request: Answer({"results": [{**request.body["leases"][0], "status": "acked", "late": False}]}, delay=1)
    )
    with Client(service.url) as client:
        manager = LeaseManager(client, "worker-1")
        acquired = acquire(manager)
        manager.renew_lease(acquired.work_item_id)
        assert manager.release_lease(acquired.work_item_id)
    assert len(service.asked("/ack")) == 1


FROZEN = """
import sys
from leasebeat import Client, LeaseLostError
from leasebeat._lease_manager import LeaseManager

manager = LeaseManager(Client(sys.argv[1]), "worker-1")
lease = manager.acquire_lease()
print("acquired", flush=True)
try:
    print(manager.renew_lease(lease.work_item_id))
except LeaseLostError as error:
    print(type(error).__name__)
"""


@pytest.mark.scar(10)
def test_a_renewal_whose_answer_is_read_after_the_leases_end_is_none(service: ScriptedService) -> None:
    """The process is stopped while its renewal is answered, for two lease lengths."""
    answered = threading.Event()

    def freeze(request: Received) -> Answer:
        process.send_signal(signal.SIGSTOP)
        answered.set()
        return beats(expires_in=1.0)(request)

    service.on("POST", "/queues/default/leases", Answer({"leases": [lease(expires_in=1.0)], "waited": 0.0, "drain": False}))
    service.on("POST", "/beat", freeze)
    with program_process(FROZEN, service.url) as process:
        assert answered.wait(LONG)
        time.sleep(2 * 1.0)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=LONG)
    assert output == b"acquired\nLeaseExpiredError\n"


# --- what an id stands for


def test_another_manager_of_the_same_client_and_worker_finds_the_lease(
    manager: LeaseManager, client: Client, queue: str, worker_id: str
) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    other = LeaseManager(client, worker_id)
    assert other.renew_lease(acquired.work_item_id)
    assert other.release_lease(acquired.work_item_id)
    assert client.get_message(acquired.work_item_id).status == "completed"


@pytest.mark.scar(2)
def test_a_workers_name_proves_nothing(manager: LeaseManager, client: Client, server: Server, queue: str, worker_id: str) -> None:
    """The same name elsewhere, with the same id, is refused; the holder is not disturbed."""
    client.send(queue, "work")
    acquired = acquire(manager)
    with Client(server.url) as elsewhere:
        for pretender in (LeaseManager(elsewhere, worker_id, queue=queue), LeaseManager(client, f"{worker_id}-2", queue=queue)):
            with pytest.raises(LeaseConflictError):
                pretender.renew_lease(acquired.work_item_id)
            for success in (True, False):
                with pytest.raises(LeaseConflictError):
                    pretender.release_lease(acquired.work_item_id, success)
    assert manager.release_lease(acquired.work_item_id)


@pytest.mark.scar(2)
def test_an_older_lease_of_the_same_worker_does_not_finish_the_newer_one(
    manager: LeaseManager, client: Client, queue: str, worker_id: str
) -> None:
    client.send(queue, "work")
    acquire(manager, seconds=0.1)
    newer = LeaseManager(client, worker_id, queue=queue)
    acquired = acquire(newer)
    with pytest.raises(LeaseConflictError):
        manager.release_lease(acquired.work_item_id, output_data="the older one's")
    assert client.get_message(acquired.work_item_id).status == "in_progress"
    assert newer.release_lease(acquired.work_item_id, output_data="the newer one's")
    assert client.get_message(acquired.work_item_id).output == "the newer one's"


@pytest.mark.scar(2)
def test_where_threads_share_a_manager_the_lease_itself_is_exact(manager: LeaseManager, client: Client, queue: str) -> None:
    client.send(queue, "work")
    older = acquire(manager, seconds=0.1)
    newer = acquire(manager)
    assert older.work_item_id == newer.work_item_id
    assert (manager.holds(older), manager.holds(newer), manager.holds(newer.work_item_id)) == (False, True, True)
    with pytest.raises(LeaseConflictError):
        manager.renew_lease(older)
    with pytest.raises(LeaseConflictError):
        manager.release_lease(older)
    assert manager.release_lease(newer)


def test_what_was_never_acquired_here_is_refused_for_what_it_is(manager: LeaseManager, client: Client, api: Api, queue: str) -> None:
    held, done, cancelled = (client.send(queue, body).id for body in ("held", "done", "cancelled"))
    api.claim_one(queue)
    api.ack(api.claim_one(queue)["receipt"])
    client.cancel_message(cancelled)
    waiting = client.send(queue, "waiting").id
    refusals = {held: LeaseConflictError, done: LeaseSettledError, cancelled: LeaseCancelledError, waiting: LeaseExpiredError}
    for work_item_id, refusal in refusals.items():
        with pytest.raises(refusal) as caught:
            manager.renew_lease(work_item_id)
        assert type(caught.value) is refusal
        assert caught.value.message_id == work_item_id
    with pytest.raises(NotFoundError):
        manager.release_lease("999999999999")


# --- what is remembered


def test_a_released_lease_is_forgotten(manager: LeaseManager, client: Client, queue: str, worker_id: str) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    other = LeaseManager(client, worker_id)
    assert other.holds(acquired.work_item_id)
    manager.release_lease(acquired.work_item_id)
    assert not manager.holds(acquired.work_item_id)
    assert not other.holds(acquired.work_item_id)
    with pytest.raises(LeaseSettledError):
        manager.release_lease(acquired.work_item_id)


def test_a_refused_release_is_forgotten(manager: LeaseManager, client: Client, api: Api, queue: str) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    api.nack(acquired.receipt)
    with pytest.raises(LeaseSettledError):
        manager.release_lease(acquired.work_item_id)
    assert not manager.holds(acquired.work_item_id)


def test_a_release_without_an_answer_may_be_repeated(service: ScriptedService) -> None:
    service.on("POST", "/queues/default/leases", Answer({"leases": [lease()], "waited": 0.0, "drain": False}))
    service.on("POST", "/ack", Break(), Break(), verdicts("acked", late=False))
    with Client(service.url) as client:
        manager = LeaseManager(client, "worker-1")
        acquired = acquire(manager)
        with pytest.raises(ServiceUnreachableError):
            manager.release_lease(acquired.work_item_id, output_data=1)
        assert manager.release_lease(acquired.work_item_id, output_data=1)
    assert [request.body["leases"] for request in service.asked("/ack")] == [[{"receipt": "secret-1", "output": 1}]] * 3


def test_leases_that_nobody_released_are_forgotten_long_after_their_end(
    client: Client, queue: str, worker_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lease_manager, "FEW", 1)
    manager = LeaseManager(client, worker_id, queue=queue)
    client.send(queue, "abandoned")
    client.send(queue, "next")
    abandoned = acquire(manager, seconds=600)
    monkeypatch.setattr(_lease_manager, "KEPT_S", -1000.0)  # as if it were an hour after its end
    following = acquire(manager)
    assert [manager.holds(each) for each in (abandoned, following)] == [False, True]


def test_what_is_remembered_goes_with_its_client(service: ScriptedService) -> None:
    service.on("POST", "/queues/default/leases", Answer({"leases": [lease()], "waited": 0.0, "drain": False}))
    client = Client(service.url)
    acquire(LeaseManager(client, "worker-1"))
    client.close()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


def test_no_receipt_shows(service: ScriptedService) -> None:
    service.on("POST", "/queues/default/leases", Answer({"leases": [lease()], "waited": 0.0, "drain": False}))
    service.on("POST", "/ack", verdicts("lost", late=False))
    with Client(service.url) as client:
        manager = LeaseManager(client, "worker-1")
        acquired = acquire(manager)
        shown = repr(manager.find(acquired.work_item_id))
        with pytest.raises(LeaseConflictError) as caught:
            manager.release_lease(acquired.work_item_id)
    assert message()["id"] in shown
    assert "secret" not in shown + str(caught.value) + repr(caught.value)


def test_threads_share_a_manager(manager: LeaseManager, client: Client, queue: str) -> None:
    ids = [client.send(queue, number).id for number in range(40)]

    def work(_: int) -> str:
        acquired = acquire(manager)
        manager.renew_lease(acquired.work_item_id)
        manager.release_lease(acquired.work_item_id, output_data=acquired.input_data)
        return acquired.work_item_id

    with ThreadPoolExecutor(8) as pool:
        worked_on = list(pool.map(work, range(40)))
    assert sorted(worked_on, key=int) == ids
    assert [client.get_message(each).output for each in ids] == list(range(40))


@pytest.mark.scar(16)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_knows_the_leases_of_its_parent(manager: LeaseManager, client: Client, queue: str) -> None:
    client.send(queue, "work")
    acquired = acquire(manager)
    child = os.fork()
    if child == 0:
        os._exit(0 if manager.renew_lease(acquired.work_item_id, progress=7) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.get_message(acquired.work_item_id).progress == 7
    assert manager.release_lease(acquired.work_item_id)
