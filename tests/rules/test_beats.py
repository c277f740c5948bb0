"""Beats extend at most once per interval, never shorten, and never revive what has run out."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from harness.api import Api, Json
from harness.postgres import RunOut, execute
from harness.wait import until


def remaining(api: Api, queue: str) -> float:
    (lease,) = api.call("GET", f"/leases?queue={queue}")["items"]
    return float(lease["expires_in"])


@pytest.mark.rule(3)
@pytest.mark.parametrize("verb", ["beat", "nack", "release"])
def test_a_lease_that_has_run_out_is_refused_from_that_instant_though_not_yet_reclaimed(
    api: Api, queue: str, run_out: RunOut, verb: str
) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    run_out(message_id)
    (lease,) = api.call("GET", f"/leases?queue={queue}")["items"]
    assert lease["expired"] is True
    assert lease["expires_in"] <= 0
    before = api.message(message_id)
    assert getattr(api, verb)(receipt)[0]["status"] == "expired"
    assert api.message(message_id) == before


@pytest.mark.scar(7)
@pytest.mark.rule(4)
def test_an_extension_never_shortens_a_longer_lease(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=1800, extension=300, beat_interval=60)
    api.send(queue, "work")
    lease = api.claim_one(queue)
    (beat,) = api.beat(lease["receipt"])
    assert beat["status"] == "extended"
    assert beat["expires_at"] == lease["expires_at"]


@pytest.mark.rule(4)
def test_a_reconfigured_queue_does_not_shorten_leases_that_are_held(api: Api, queue: str) -> None:
    api.send(queue, "work")
    lease = api.claim_one(queue, visibility_timeout=600)
    api.put_queue(queue, visibility_timeout=5, extension=5, beat_interval=0)
    for _ in range(3):
        assert api.beat(lease["receipt"])[0]["expires_at"] == lease["expires_at"]


@pytest.mark.rule(4)
def test_no_beat_moves_a_lease_beyond_its_hard_end(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=60, extension=300, beat_interval=0, max_lease=200)
    api.send(queue, "work")
    lease = api.claim_one(queue)
    assert lease["deadline_in"] == pytest.approx(200)
    hard_end = datetime.fromisoformat(lease["expires_at"]) + timedelta(seconds=200 - 60)
    first = api.beat(lease["receipt"])[0]
    assert (first["status"], datetime.fromisoformat(first["expires_at"])) == ("extended", hard_end)
    for _ in range(3):
        (beat,) = api.beat(lease["receipt"])
        assert (beat["status"], datetime.fromisoformat(beat["expires_at"])) == ("held", hard_end)


@pytest.mark.scar(8)
@pytest.mark.rule(5)
def test_the_first_beat_extends_at_once(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=200, extension=300, beat_interval=60)
    api.send(queue, "work")
    (beat,) = api.beat(api.claim_one(queue)["receipt"])
    assert beat["status"] == "extended"
    assert beat["expires_in"] == pytest.approx(300)
    assert beat["next_beat_in"] == 60


@pytest.mark.rule(5)
def test_a_beat_within_the_interval_is_held_and_told_when_to_come_again(api: Api, queue: str, shared_database: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    first = api.beat(receipt)[0]
    second = api.beat(receipt)[0]
    assert [first["status"], second["status"]] == ["extended", "held"]
    assert second["expires_at"] == first["expires_at"]
    assert 0 < second["next_beat_in"] <= 60
    execute(shared_database, "update lease set extended_at = extended_at - interval '60 seconds' where message_id = $1", int(message_id))
    assert api.beat(receipt)[0]["status"] == "extended"


@pytest.mark.scar(6)
@pytest.mark.rule(5)
def test_twenty_concurrent_beats_make_one_extension(api: Api, queue: str) -> None:
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    start = threading.Barrier(20)

    def beat(_: int) -> str:
        start.wait()
        return str(api.beat(receipt)[0]["status"])

    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(beat, range(20)))
    assert sorted(statuses) == ["extended"] + ["held"] * 19


@pytest.mark.scar(6)
@pytest.mark.rule(5)
def test_beats_for_one_lease_in_one_call_make_one_extension_and_keep_the_furthest_progress(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    beats = [{"receipt": receipt, "progress": progress} for progress in (1, 3, 2)]
    results = api.call("POST", "/beat", {"leases": beats})["results"]
    assert [result["status"] for result in results] == ["extended", "held", "held"]
    assert api.message(message_id)["progress"] == 3


@pytest.mark.rule(5)
def test_an_interval_of_zero_makes_each_beat_extend(api: Api, queue: str) -> None:
    api.put_queue(queue, beat_interval=0)
    api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    assert [api.beat(receipt)[0]["status"] for _ in range(3)] == ["extended"] * 3


@pytest.mark.rule(5)
def test_a_beat_extends_when_less_than_an_interval_is_left_whatever_the_interval_says(api: Api, queue: str) -> None:
    api.put_queue(queue, visibility_timeout=300, extension=130, beat_interval=60)
    api.send(queue, "work")
    receipt = api.claim_one(queue, visibility_timeout=60)["receipt"]
    api.put_queue(queue, visibility_timeout=300, extension=20_000, beat_interval=9_000)
    assert api.beat(receipt)[0]["status"] == "extended"
    api.put_queue(queue, visibility_timeout=300, extension=60_000, beat_interval=25_000)
    assert api.beat(receipt)[0]["status"] == "extended"
    assert api.beat(receipt)[0]["status"] == "held"


@pytest.mark.rule(5)
def test_a_queue_without_extension_holds_every_beat(api: Api, queue: str) -> None:
    api.put_queue(queue, extension_enabled=False)
    api.send(queue, "work")
    lease = api.claim_one(queue)
    (beat,) = api.beat(lease["receipt"])
    assert beat["status"] == "held"
    assert beat["expires_at"] == lease["expires_at"]


@pytest.mark.rule(5)
def test_where_progress_is_required_a_beat_without_it_is_stalled(api: Api, queue: str) -> None:
    api.put_queue(queue, beat_interval=0, progress_required=True)
    api.send(queue, "work")
    receipt = api.claim_one(queue, visibility_timeout=60)["receipt"]

    def beat(**progress: Json) -> str:
        return str(api.beat(receipt, **progress)[0]["status"])

    assert beat() == "stalled"
    assert remaining(api, queue) <= 60
    assert [beat(progress=1), beat(progress=1), beat(), beat(progress=2), beat(progress=1)] == [
        "extended",
        "stalled",
        "stalled",
        "extended",
        "stalled",
    ]
    assert remaining(api, queue) > 200


@pytest.mark.rule(5)
def test_where_progress_is_required_a_hung_worker_that_still_beats_loses_its_lease(api: Api, queue: str, shared_database: str) -> None:
    """Each of its beats would extend the lease for five minutes; the first one does, and then the lease is taken to be almost over."""
    api.put_queue(queue, beat_interval=0.05, progress_required=True)
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    assert api.beat(receipt, progress=7)[0]["status"] == "extended"
    almost_over = "update lease set expires_at = now() + interval '1 second', check_at = now() + interval '1 second' where message_id = $1"
    execute(shared_database, almost_over, int(message_id))
    statuses: list[str] = []

    def beats_until_lost() -> bool:
        statuses.append(api.beat(receipt, progress=7)[0]["status"])
        return statuses[-1] == "expired"

    until(beats_until_lost, pause=0.1)
    assert set(statuses[:-1]) <= {"held", "stalled"}
    assert api.claim_one(queue, wait=40)["message"]["progress"] == 7


@pytest.mark.scar(13)
def test_a_held_beat_still_keeps_its_progress_and_detail(api: Api, queue: str) -> None:
    (message_id,) = api.send(queue, "work")
    receipt = api.claim_one(queue)["receipt"]
    api.beat(receipt, progress=1, detail={"step": "one"})
    assert api.beat(receipt, progress=2, detail={"step": "two"})[0]["status"] == "held"
    message = api.message(message_id)
    assert (message["progress"], message["detail"]) == (2, {"step": "two"})
    api.nack(receipt)
    resumed = api.claim_one(queue)["message"]
    assert (resumed["progress"], resumed["detail"]) == (2, {"step": "two"})
