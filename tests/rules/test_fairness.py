"""Claims take turns among fairness keys by weight; within a key, priority comes first, then age."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TypeAlias

import asyncpg
import pytest
from harness.api import Api
from harness.plans import fill
from harness.postgres import RunOut
from harness.server import Server
from harness.wait import until

StartServer: TypeAlias = Callable[..., Server]


def keys(leases: list[dict[str, dict[str, str]]]) -> list[str]:
    return [lease["message"]["fairness_key"] for lease in leases]


def bodies(leases: list[dict[str, dict[str, str]]]) -> list[str]:
    return [lease["message"]["body"] for lease in leases]


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


@pytest.mark.scar(49)
@pytest.mark.parametrize("processes", [1, 3])
def test_shares_hold_in_any_window_of_half_the_backlog(
    start_server: StartServer, database_url: str, processes: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Weights 1:2:3:4:5, claims of all sizes at the same time: no key's share of the grants is off by 5 % of the share itself.

    Grants of one statement have one moment. They are put in the order of their ids, which is key by key: the most uneven there is.
    """
    apis = [start_server().api for _ in range(processes)]
    weights = {f"key-{weight}": weight for weight in (5, 2, 4, 1, 3)}
    apis[0].put_queue("default", weights=weights)
    for name, weight in weights.items():
        for _ in range(2 * weight):
            apis[0].send("default", *range(1000), fairness_key=name)

    def work(seed: int) -> None:
        choose = random.Random(seed)
        while choose.choice(apis).claim("default", max_messages=choose.choice([1, 3, 10, 50])):
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    granted = asyncio.run(in_order_of_grant(database_url))
    assert Counter(granted) == {name: 2000 * weight for name, weight in weights.items()}
    worst = max(deviation(granted, name, weight / 15) for name, weight in weights.items())
    record_testsuite_property(f"worst deviation of a share, {processes} processes", f"{worst:.2%}")
    assert worst <= 0.05


async def in_order_of_grant(database_url: str) -> list[str]:
    """Return the fairness keys of the leases."""
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("select fairness_key from lease join message on message.id = message_id order by granted_at, message_id")
    await connection.close()
    return [row["fairness_key"] for row in rows]


def deviation(granted: list[str], name: str, share: float) -> float:
    """Return how far, as a part of it, a key's share strays from what it should be in any window of half the grants."""
    window = len(granted) // 2
    counts = [granted[:window].count(name)]
    for gone, come in zip(granted, granted[window:], strict=False):
        counts.append(counts[-1] - (gone == name) + (come == name))
    return max(abs(count / (window * share) - 1) for count in counts)


@pytest.mark.scar(50)
@pytest.mark.parametrize("processes", [1, 3])
async def test_one_message_is_not_behind_the_backlog_of_another_tenant(
    start_server: StartServer, database_url: str, processes: int
) -> None:
    """It comes 100,000 messages late, while each process is somewhere in its round, and is leased within one round of each."""
    apis = [start_server().api for _ in range(processes)]
    large, small = "key-0", "small"
    apis[0].put_queue("default", weights={large: 5})
    connection = await asyncpg.connect(database_url)
    await fill(connection, ready=100_000)
    await connection.close()
    for n, api in enumerate(apis):
        assert set(keys(api.claim("default", max_messages=2 + n))) == {large}
    apis[0].send("default", "mine", fairness_key=small)
    granted: list[str] = []
    for api, batch in zip(cycle(apis), (1, 2, 3) * processes, strict=False):
        granted += keys(api.claim("default", max_messages=batch))
    assert granted.count(small) == 1
    assert granted.index(small) < processes * (5 + 1)
    # And alone again, the tenant gets everything at once.
    assert keys(apis[-1].claim("default", max_messages=1000)) == [large] * 1000


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
    assert bodies(api.claim(queue, max_messages=10)) == ["urgent", "first", "second", "low"]


@pytest.mark.parametrize("end", ["nack", "release", "run out"])
def test_a_message_that_comes_back_is_its_key_s_oldest_and_waits_for_its_turn(api: Api, queue: str, end: str, expire: RunOut) -> None:
    api.send(queue, "a1", "a2", "a3", fairness_key="a")
    api.send(queue, "b1", "b2", "b3", fairness_key="b")
    leases = api.claim(queue, max_messages=2)
    assert bodies(leases) in (["a1", "b1"], ["b1", "a1"])
    lost = leases[0]
    api.ack(leases[1]["receipt"])
    match end:
        case "nack":
            api.nack(lost["receipt"])
        case "release":
            api.release(lost["receipt"])
        case "run out":
            expire(lost["message"]["id"])
    until(lambda: api.message(lost["message"]["id"])["status"] == "pending")
    again = bodies([api.claim_one(queue) for _ in range(5)])
    mine, other = lost["message"]["fairness_key"], leases[1]["message"]["fairness_key"]
    assert [body for body in again if body[0] == mine] == [f"{mine}1", f"{mine}2", f"{mine}3"]
    assert [body[0] for body in again] in ([mine, other, mine, other, mine], [other, mine, other, mine, mine])


def test_weights_change_without_sending_again(api: Api, queue: str) -> None:
    send_to_keys(api, queue, 50, "a", "b")
    api.put_queue(queue, weights={"a": 4})
    assert Counter(keys(api.claim(queue, max_messages=50))) == {"a": 40, "b": 10}


def test_each_replica_is_fair(start_server: StartServer) -> None:
    apis = [start_server().api, start_server().api]
    send_to_keys(apis[0], "default", 60, "a", "b", "c")
    taken = Counter(key for n in range(30) for key in keys(apis[n % 2].claim("default", max_messages=3)))
    assert taken == {"a": 30, "b": 30, "c": 30}


@pytest.mark.parametrize(("weight", "wanted"), [(5, 3), (1000, 500)])
def test_a_batch_is_filled_though_the_key_that_might_have_filled_it_runs_dry(api: Api, queue: str, weight: int, wanted: int) -> None:
    api.put_queue(queue, weights={"a": weight})
    api.send(queue, "a", fairness_key="a")
    api.send(queue, *["b"] * 600, fairness_key="b")
    assert len(api.claim(queue, max_messages=wanted)) == wanted
