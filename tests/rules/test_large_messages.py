"""Large messages: what one answer holds is bounded, and whatever does not fit comes with the next."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api, Json
from harness.postgres import execute

from app.store.pick import ANSWER_BYTES

LARGE = "x" * 250_000
FIT = ANSWER_BYTES // len(LARGE) + 1
"""With one more than are smaller than an answer, it is full."""
MOST_OF_A_CALL = 30


def send_large(api: Api, queue: str, count: int, **options: Json) -> list[str]:
    return [
        message_id
        for first in range(0, count, MOST_OF_A_CALL)
        for message_id in api.send(queue, *[LARGE] * min(MOST_OF_A_CALL, count - first), **options)
    ]


def ids_of(leases: list[Json]) -> list[str]:
    return [lease["message"]["id"] for lease in leases]


@pytest.mark.parametrize("filters", [{}, {"work_types": ["a", "b"]}, {"task_id": "t"}, {"work_types": ["a"], "task_id": "t"}])
def test_a_claim_takes_as_many_as_an_answer_holds_and_leaves_the_rest_ready(api: Api, queue: str, filters: Json) -> None:
    sent = send_large(api, queue, FIT + 2, work_type="a", task_id="t")
    first = api.claim(queue, max_messages=1000, **filters)
    assert ids_of(first) == sent[:FIT]
    assert {api.message(message_id)["status"] for message_id in sent[FIT:]} == {"pending"}
    assert ids_of(api.claim(queue, max_messages=1000, **filters)) == sent[FIT:]
    assert api.claim(queue, max_messages=1000, **filters) == []


def test_what_an_older_version_has_stored_is_measured_by_the_claim(api: Api, queue: str, shared_database: str) -> None:
    sent = send_large(api, queue, FIT + 1)
    execute(shared_database, "update message set size = null where id = any($1)", [int(each) for each in sent])
    assert ids_of(api.claim(queue, max_messages=1000)) == sent[:FIT]


def test_headers_count_too(api: Api, queue: str) -> None:
    headers = {f"header-{number}": "x" * 2000 for number in range(50)}
    for _ in range(2):
        api.send(queue, *range(60), headers=headers)
    assert ANSWER_BYTES // 102_000 <= len(api.claim(queue, max_messages=1000)) <= ANSWER_BYTES // 100_000 + 1


def test_callers_who_share_a_full_answer_get_theirs_by_the_next(api: Api, queue: str) -> None:
    """None of them is sent away empty while messages are ready, though none waits."""
    callers, each = 20, 4
    send_large(api, queue, callers * each)
    with ThreadPoolExecutor(callers) as pool:
        claims = [pool.submit(api.claim, queue, f"worker-{number}", max_messages=each) for number in range(callers)]
        granted = [ids_of(claim.result()) for claim in claims]
    assert all(granted)
    assert max(Counter(message_id for ids in granted for message_id in ids).values()) == 1


def test_no_key_keeps_the_others_from_their_turn_by_filling_the_answer(api: Api, queue: str) -> None:
    for key in "ab":
        send_large(api, queue, 2 * FIT, fairness_key=key)
    first, second = ({lease["message"]["fairness_key"] for lease in api.claim(queue, max_messages=1000)} for _ in range(2))
    assert (first, second) == ({"a"}, {"b"})
