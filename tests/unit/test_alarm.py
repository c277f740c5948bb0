"""The alarm that the timer sleeps by, on the event loop's own clock."""

import asyncio

from app.store.alarm import Alarm


async def timed(alarm: Alarm, longest: float) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.wait_for(alarm.sleep(longest), 25)
    return loop.time() - start


async def test_unset_it_sleeps_as_long_as_allowed() -> None:
    assert 0.04 <= await timed(Alarm(), 0.05) < 20


async def test_set_it_rings_when_due_and_not_before() -> None:
    alarm = Alarm()
    alarm.set(0.05)
    assert 0.04 <= await timed(alarm, 60) < 20


async def test_an_earlier_moment_puts_it_forward_during_the_sleep() -> None:
    alarm = Alarm()
    alarm.set(50)
    asyncio.get_running_loop().call_later(0.01, alarm.set, 0.01)
    assert await timed(alarm, 60) < 20


async def test_a_later_moment_does_not_put_it_back() -> None:
    alarm = Alarm()
    alarm.set(0.03)
    alarm.set(30)
    assert await timed(alarm, 60) < 20


async def test_a_moment_after_the_longest_sleep_does_not_lengthen_it() -> None:
    alarm = Alarm()
    alarm.set(30)
    assert await timed(alarm, 0.02) < 20


async def test_a_moment_in_the_past_rings_at_once() -> None:
    alarm = Alarm()
    alarm.set(-1)
    assert await timed(alarm, 60) < 20


async def test_once_it_has_rung_it_is_unset() -> None:
    alarm = Alarm()
    alarm.set(0)
    await timed(alarm, 60)
    assert await timed(alarm, 0.05) >= 0.04


async def test_a_moment_set_between_two_sleeps_counts_for_the_next() -> None:
    alarm = Alarm()
    await timed(alarm, 0)
    alarm.set(0.01)
    assert await timed(alarm, 60) < 20
