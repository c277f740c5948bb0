"""Claims for some messages only: by work type, by task, by both."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api, Json
from harness.metrics import value
from harness.operating import RARELY
from harness.server import Server
from harness.wait import until

LONG = 40


def bodies(leases: list[Json]) -> list[Json]:
    return [lease["message"]["body"] for lease in leases]


def test_a_claim_gets_only_messages_of_the_types_it_asks_for(api: Api, queue: str) -> None:
    for work_type in ("a", "b", "c"):
        api.send(queue, f"{work_type}1", f"{work_type}2", work_type=work_type)
    api.send(queue, "none")
    assert bodies(api.claim(queue, max_messages=10, work_types=["b"])) == ["b1", "b2"]
    assert bodies(api.claim(queue, max_messages=10, work_types=["a", "c", "x", "a"])) == ["a1", "a2", "c1", "c2"]
    assert api.claim(queue, max_messages=10, work_types=["a", "b", "c"]) == []
    assert bodies(api.claim(queue, max_messages=10)) == ["none"]


def test_a_claim_gets_only_messages_of_the_task_it_asks_for(api: Api, queue: str) -> None:
    api.send(queue, "other", task_id="other", work_type="a")
    api.send(queue, "mine a", task_id="mine", work_type="a")
    api.send(queue, "mine b", task_id="mine", work_type="b")
    api.send(queue, "mine", task_id="mine")
    assert bodies(api.claim(queue, max_messages=10, task_id="mine", work_types=["b", "c"])) == ["mine b"]
    assert bodies(api.claim(queue, max_messages=10, task_id="mine")) == ["mine a", "mine"]
    assert bodies(api.claim(queue, max_messages=10)) == ["other"]


def test_among_several_types_priority_comes_first_then_age(api: Api, queue: str) -> None:
    api.send(queue, "a low", work_type="a", priority=-1)
    api.send(queue, "b", work_type="b")
    api.send(queue, "a", work_type="a")
    api.send(queue, "b high", work_type="b", priority=1)
    assert bodies([api.claim_one(queue, work_types=["a", "b"]) for _ in range(4)]) == ["b high", "b", "a", "a low"]


@pytest.mark.scar(49)
@pytest.mark.parametrize("wanted", [{"work_types": ["t", "u"]}, {"work_types": ["t"]}, {"task_id": "task"}])
def test_filtered_claims_take_turns_among_keys_by_weight(api: Api, queue: str, wanted: Json) -> None:
    api.put_queue(queue, weights={"b": 2})
    for key in ("a", "b", "c"):
        api.send(queue, *[key] * 20, fairness_key=key, work_type="t", task_id="task")
        api.send(queue, *[f"not {key}"] * 20, fairness_key=key, work_type="v", task_id="other")
    taken = bodies([lease for _ in range(6) for lease in api.claim(queue, max_messages=4, **wanted)])
    assert (taken.count("a"), taken.count("b"), taken.count("c")) == (6, 12, 6)


@pytest.mark.scar(20)
@pytest.mark.rule(11)
def test_a_parked_claim_is_woken_for_its_type_and_sleeps_through_others(start_server: Callable[..., Server]) -> None:
    one, two = (start_server(sweep_interval=RARELY).api for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(two.claim_one, "default", wait=LONG, work_types=["mine"])
        until(lambda: value(two, "leasebeat_parked_claims") == 1)
        one.send("default", "not this", work_type="other")
        one.send("default", "this", work_type="mine")
        assert parked.result()["message"]["body"] == "this"
    assert bodies(one.claim("default", max_messages=10)) == ["not this"]


def test_everything_is_delivered_once_to_claims_of_many_kinds(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api for _ in range(2)]
    ids = [
        message_id
        for n in range(60)
        for message_id in apis[0].send(
            "default", *range(5), work_type=f"type-{n % 3}", task_id=f"task-{n % 2}", fairness_key=f"key-{n % 7}"
        )
    ]
    wanted: list[Json] = [{}, {"work_types": ["type-0"]}, {"work_types": ["type-1", "type-2"]}, {"task_id": "task-1"}]

    def take(n: int) -> list[str]:
        taken: list[str] = []
        while leases := apis[n % 2].claim("default", max_messages=3, **wanted[n % 4]):
            taken += [lease["message"]["id"] for lease in leases]
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [message_id for each in pool.map(take, range(8)) for message_id in each]
    taken += take(0)
    assert sorted(taken, key=int) == ids
