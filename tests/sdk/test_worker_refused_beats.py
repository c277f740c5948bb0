"""Beats that the service, or what is in front of it, does not take, and leases that no beat extends."""

import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from harness.wait import until
from sdk.running import CLAIM, Start, grant, grant_until_settled, lost_lease, park
from sdk.scripted_service import Answer, Received, ScriptedService, beat_result, beats, lease, message, problem

from leasebeat import Context, LeasedMessage, LeaseExpiredError

SLOW_S = 0.6
MANY = 100


@pytest.mark.scar(9)
@pytest.mark.timed
@pytest.mark.parametrize("why", ["at its hard end", "refused"])
def test_a_lease_that_no_beat_extends_hurries_nobody(why: str, service: ScriptedService, start: Start) -> None:
    """A call within a third of its time would be given up, and repeated, before its answer."""
    old = lease("old", expires_in=1.5, message=message(id="old"), deadline_in=1.5 if why == "at its hard end" else 43200.0)
    begun = time.monotonic()

    def answer(request: Received) -> Answer:
        left = 1.5 - (time.monotonic() - begun)
        words: dict[str, Any] = {"young": ("extended", 60.0, 0.1), "old": ("held", left, left)}
        if why == "refused":
            words["old"] = ("error", None, None)
        results = [beat_result(item["receipt"], *words[item["receipt"]]) for item in request.body["leases"]]
        first = len(service.asked("/beat")) == 1
        return Answer({"results": results}, delay=0.0 if first else SLOW_S)

    def handle(_message: LeasedMessage, context: Context) -> None:
        while len(service.asked("/beat")) < 4 and not context.lost.is_set():
            context.beat()
            time.sleep(0.01)

    service.on("POST", CLAIM, grant(old, lease("young", message=message(id="young"))), park)
    service.on("POST", "/beat", answer)
    start(handle, concurrency=2)
    calls = service.wait_for("/beat", 4)
    assert "old" in [item["receipt"] for item in calls[1].body["leases"] + calls[2].body["leases"]]
    assert all(later.at - earlier.at > 0.9 * SLOW_S for earlier, later in pairwise(calls[1:])), "each was waited for"


@pytest.mark.scar(9)
@pytest.mark.rule(10)
def test_who_refuses_everything_is_not_called_the_more_often_the_more_leases_there_are(service: ScriptedService, start: Start) -> None:
    taken: set[str] = set()
    done = threading.Event()

    def take(request: Received) -> Answer:
        taken.update(item["receipt"] for item in request.body["leases"])
        return beats()(request)

    def handle(message: LeasedMessage, context: Context) -> None:
        context.beat(progress=1, detail=message.id)
        done.wait(60)

    leases = [lease(f"r-{number}", expires_in=600.0, message=message(id=str(number))) for number in range(MANY)]
    service.on("POST", CLAIM, grant(*leases), park)
    service.on("POST", "/beat", problem(413, "body-too-large"))
    start(handle, concurrency=MANY)
    (first,) = service.wait_for("/beat")[:1]
    until(lambda: time.monotonic() > first.at + 2)
    in_time = [request for request in service.asked("/beat") if request.at <= first.at + 2]
    assert len(in_time) <= 2.5 * MANY, "each lease alone, again and again, would be three times as many"
    service.on("POST", "/beat", take)
    until(lambda: len(taken) == MANY)
    done.set()
    service.wait_for("/ack", MANY)


def test_details_that_are_refused_however_they_change_cost_no_beat(service: ScriptedService, start: Start) -> None:
    """The answers tell of a short lease, so that beats are close to each other; that it is longer was granted before."""
    taken: list[int] = []

    def answer(request: Received) -> Answer:
        (item,) = request.body["leases"]
        if "detail" in item:
            return problem(422, "invalid-request")
        taken.append(item["progress"])
        return beats(expires_in=1.0, next_beat_in=0.01)(request)

    def handle(_message: LeasedMessage, context: Context) -> bool:
        progress = 0
        while len(taken) < 5:
            context.beat(progress=progress, detail={"at": progress})
            progress += 1
            time.sleep(0.001)
        return True

    service.on("POST", "/beat", answer)
    start(handle)
    assert service.wait_for("/ack")[0].body["leases"][0].get("output") is True
    assert len(service.asked("/beat")) <= 2 * len(taken) + 2, "each detail is tried once, and the beat goes without it"


def test_a_lease_whose_beat_is_refused_alone_does_not_stay_away_from_the_others_for_good(service: ScriptedService, start: Start) -> None:
    """Once it is taken again, the answers take so long that both leases are due after each."""
    taken: list[set[str]] = []

    def answer(request: Received) -> Answer:
        receipts = {item["receipt"] for item in request.body["leases"]}
        if len(service.asked("/beat")) <= 6 and "bad" in receipts:
            return problem(422, "invalid-request")
        taken.append(receipts)
        return replace(beats(expires_in=4.0, next_beat_in=0.0)(request), delay=0.5)

    def handle(_message: LeasedMessage, context: Context) -> None:
        while not together():
            context.beat()
            time.sleep(0.005)

    def together() -> bool:
        return {"bad"} in taken and {"bad", "good"} in taken[taken.index({"bad"}) :]

    service.on("POST", CLAIM, grant(*(lease(name, message=message(id=name)) for name in ("bad", "good"))), park)
    service.on("POST", "/beat", answer)
    start(handle, concurrency=2)
    service.wait_for("/ack", 2)


def test_a_lost_lease_is_heard_of_though_beats_are_refused(service: ScriptedService, start: Start) -> None:
    def handle(_message: LeasedMessage, context: Context) -> None:
        assert lost_lease(context) is LeaseExpiredError

    service.on("POST", CLAIM, grant_until_settled(service, lease(expires_in=1.5)))
    service.on("POST", "/beat", problem(400, "bad"))
    start(handle)
    service.wait_for("/ack")
