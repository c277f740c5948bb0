"""A lease belongs to its receipt: nothing else proves ownership, and a refused call changes nothing."""

import pytest
from harness.api import Api


def lost_lease(api: Api, queue: str, *, workers: tuple[str, str]) -> tuple[str, str]:
    """Let a first lease run out and a second be granted on the same message; return both receipts."""
    first = api.claim_one(queue, workers[0], visibility_timeout=0.2)
    second = api.claim_one(queue, workers[1], wait=40)
    assert second["message"]["id"] == first["message"]["id"]
    assert second["generation"] == first["generation"] + 1
    return first["receipt"], second["receipt"]


@pytest.mark.scar(1)
@pytest.mark.rule(2, 6)
def test_a_stale_holder_cannot_write_its_failure_over_the_winners_success(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    stale, winner = lost_lease(api, queue, workers=("a", "b"))
    assert api.ack(winner, output={"by": "b"})[0]["status"] == "acked"
    before = api.message(message_id)

    assert api.nack(stale, error="a failed", retryable=False)[0]["status"] == "lost"

    assert api.message(message_id) == before
    assert before["status"] == "completed"
    assert before["output"] == {"by": "b"}
    reports = [each for each in api.checkpoints(message_id) if each["kind"] == "late_report"]
    assert [(each["generation"], each["facts"]) for each in reports] == [(1, {"verb": "nack", "error": "a failed"})]


@pytest.mark.scar(1)
@pytest.mark.rule(2)
def test_a_stale_holders_failure_leaves_the_running_attempt_alone(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    stale, holder = lost_lease(api, queue, workers=("a", "b"))
    before = api.message(message_id)
    assert api.nack(stale, error="a failed")[0]["status"] == "lost"
    assert api.release(stale)[0]["status"] == "lost"
    assert api.message(message_id) == before
    assert api.ack(holder)[0]["status"] == "acked"


@pytest.mark.scar(2)
@pytest.mark.rule(2)
@pytest.mark.parametrize("verb", ["beat", "ack", "nack", "release"])
def test_the_same_workers_older_receipt_is_refused(api: Api, queue: str, verb: str) -> None:
    (message_id,) = api.send(queue, "work")
    older, newer = lost_lease(api, queue, workers=("same-worker", "same-worker"))
    before = api.message(message_id)
    assert getattr(api, verb)(older)[0]["status"] == "lost"
    assert api.message(message_id) == before
    assert api.beat(newer)[0]["status"] == "extended"


@pytest.mark.scar(3)
@pytest.mark.rule(2)
def test_a_stale_holders_completion_is_refused_in_words_a_program_can_act_on(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    stale, holder = lost_lease(api, queue, workers=("a", "b"))
    (answer,) = api.ack(stale, output="too late")
    assert answer == {"receipt": stale, "status": "lost", "late": False}
    assert api.message(message_id)["status"] == "in_progress"
    (report,) = [each for each in api.checkpoints(message_id) if each["kind"] == "late_report"]
    assert report["facts"] == {"verb": "ack", "output": "too late"}
    assert api.ack(holder)[0] == {"receipt": holder, "status": "acked", "late": False}


@pytest.mark.rule(6)
def test_a_late_report_that_is_repeated_is_kept_once(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    stale, _ = lost_lease(api, queue, workers=("a", "b"))
    for _ in range(5):
        api.ack(stale, output="too late")
    assert [each["kind"] for each in api.checkpoints(message_id)].count("late_report") == 1


@pytest.mark.scar(5)
@pytest.mark.rule(2)
def test_knowing_a_message_or_another_receipt_does_not_give_its_lease(api: Api, queue: str) -> None:
    api.send(queue, "mine", "theirs")
    mine, theirs = api.claim(queue, max_messages=2)
    spliced = mine["receipt"][:20] + theirs["receipt"][20:]
    flipped = [
        mine["receipt"][:n] + ("A" if mine["receipt"][n] != "A" else "B") + mine["receipt"][n + 1 :] for n in range(len(mine["receipt"]))
    ]
    guesses = [mine["message"]["id"], spliced, *flipped]
    for verb in (api.beat, api.ack, api.nack, api.release):
        assert {answer["status"] for answer in verb(*guesses)} == {"unknown"}
    assert api.message(mine["message"]["id"])["status"] == "in_progress"
    assert api.message(theirs["message"]["id"])["status"] == "in_progress"


@pytest.mark.scar(5)
def test_reads_never_show_a_receipt(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    shown = [
        f"/messages/{message_id}",
        f"/queues/{queue}/messages",
        f"/leases?queue={queue}",
        f"/messages/{message_id}/checkpoints",
        "/metrics",
    ]
    for path in shown:
        assert receipt not in api.client.get(path).text


@pytest.mark.rule(2)
def test_a_lease_that_ended_says_how(api: Api, queue: str) -> None:
    api.send(queue, 1, 2, 3)
    acked, nacked, released = (lease["receipt"] for lease in api.claim(queue, max_messages=3))
    api.ack(acked)
    api.nack(nacked, delay=60)
    api.release(released)
    for receipt in (acked, nacked, released):
        assert api.beat(receipt)[0] == {
            "receipt": receipt,
            "status": "settled",
            "expires_at": None,
            "expires_in": None,
            "next_beat_in": None,
        }
    assert [api.nack(acked)[0]["status"], api.release(acked)[0]["status"]] == ["settled", "settled"]
    assert [api.ack(nacked)[0]["status"], api.release(nacked)[0]["status"]] == ["settled", "settled"]
    assert [api.ack(released)[0]["status"], api.nack(released)[0]["status"]] == ["settled", "settled"]


@pytest.mark.rule(2)
def test_one_refused_lease_does_not_fail_the_others_of_its_call(api: Api, queue: str) -> None:
    api.send(queue, 1, 2)
    first, second = (lease["receipt"] for lease in api.claim(queue, max_messages=2))
    assert [answer["status"] for answer in api.ack("nonsense", first, "AAAA", second)] == ["unknown", "acked", "unknown", "acked"]


@pytest.mark.rule(2)
def test_a_deleted_queues_leases_are_unknown(api: Api, queue: str) -> None:
    api.send(queue, 1)
    receipt = api.claim_one(queue)["receipt"]
    api.call("DELETE", f"/queues/{queue}?force=true", expect=204)
    for verb in (api.beat, api.ack, api.nack, api.release):
        assert verb(receipt)[0]["status"] == "unknown"
