"""Claims take turns among fairness keys by weight; within a key, priority comes first, then age."""

from collections import Counter
from collections.abc import Callable

import pytest
from harness.api import Api
from harness.server import Server


def keys(leases: list[dict[str, dict[str, str]]]) -> list[str]:
    return [lease["message"]["fairness_key"] for lease in leases]


def send_to_keys(api: Api, queue: str, each: int, *names: str) -> None:
    for name in names:
        api.send(queue, *range(each), fairness_key=name)


def test_single_claims_take_turns(api: Api, queue: str) -> None:
    send_to_keys(api, queue, 10, "a", "b", "c")
    assert "".join(keys([api.claim_one(queue) for _ in range(9)])) in {"abcabcabc", "bcabcabca", "cabcabcab"}


@pytest.mark.parametrize("batch", [1, 4, 10, 30])
def test_shares_follow_weights(api: Api, queue: str, batch: int) -> None:
    api.put_queue(queue, weights={"b": 2, "c": 3})
    send_to_keys(api, queue, 60, "a", "b", "c")
    taken = Counter[str]()
    while taken.total() < 60:
        taken.update(keys(api.claim(queue, max_messages=batch)))
    total = taken.total()
    assert abs(taken["a"] - total / 6) <= 2
    assert abs(taken["b"] - total / 3) <= 2
    assert abs(taken["c"] - total / 2) <= 3


def test_one_message_of_a_small_tenant_is_not_behind_a_large_ones_backlog(api: Api, queue: str) -> None:
    api.send(queue, *range(1000), fairness_key="large")
    api.send(queue, "mine", fairness_key="small")
    assert "small" in keys([api.claim_one(queue) for _ in range(2)])


def test_a_lone_tenant_gets_everything(api: Api, queue: str) -> None:
    api.send(queue, *range(100), fairness_key="only")
    assert len(api.claim(queue, max_messages=100)) == 100


def test_a_batch_is_filled_though_some_keys_run_dry(api: Api, queue: str) -> None:
    send_to_keys(api, queue, 1, *(f"small-{n}" for n in range(5)))
    api.send(queue, *range(200), fairness_key="large")
    leases = api.claim(queue, max_messages=100)
    assert Counter(keys(leases)) == {"large": 95, **{f"small-{n}": 1 for n in range(5)}}


def test_more_keys_than_messages_are_all_served_in_turn(api: Api, queue: str) -> None:
    send_to_keys(api, queue, 2, *(f"key-{n:02}" for n in range(30)))
    first = [key for _ in range(3) for key in keys(api.claim(queue, max_messages=10))]
    assert sorted(first) == [f"key-{n:02}" for n in range(30)]


def test_everything_is_delivered_once_whatever_the_batches(api: Api, queue: str) -> None:
    api.put_queue(queue, weights={"a": 7})
    send_to_keys(api, queue, 37, "", "a", "b", "ü", "zz")
    taken: list[str] = []
    for batch in (1, 2, 3, 50, 7, 1000):
        taken += [lease["message"]["id"] for lease in api.claim(queue, max_messages=batch)]
    assert len(taken) == len(set(taken)) == 5 * 37
    assert api.claim(queue) == []


def test_within_a_key_priority_comes_first_then_age(api: Api, queue: str) -> None:
    api.send(queue, "low", priority=-5)
    api.send(queue, "first", "second")
    api.send(queue, "urgent", priority=10)
    assert [lease["message"]["body"] for lease in api.claim(queue, max_messages=10)] == ["urgent", "first", "second", "low"]


def test_a_requeued_message_keeps_its_place_in_age(api: Api, queue: str) -> None:
    api.send(queue, "oldest", "middle", "newest")
    api.nack(api.claim_one(queue)["receipt"])
    assert [lease["message"]["body"] for lease in api.claim(queue, max_messages=3)] == ["oldest", "middle", "newest"]


def test_weights_change_without_sending_again(api: Api, queue: str) -> None:
    send_to_keys(api, queue, 50, "a", "b")
    api.put_queue(queue, weights={"a": 4})
    assert Counter(keys(api.claim(queue, max_messages=50))) == {"a": 40, "b": 10}


def test_each_replica_is_fair(start_server: Callable[..., Server]) -> None:
    apis = [start_server().api, start_server().api]
    send_to_keys(apis[0], "default", 60, "a", "b", "c")
    taken = Counter(key for n in range(30) for key in keys(apis[n % 2].claim("default", max_messages=3)))
    assert taken == {"a": 30, "b": 30, "c": 30}
