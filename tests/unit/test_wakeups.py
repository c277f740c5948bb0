"""What replicas tell each other of messages that are ready: all of it, in texts that a notification can hold."""

from hypothesis import given
from hypothesis import strategies as st

from app.leases.floors import Firsts, Level
from app.store.wakeups import payloads, read_payload

MOST_BYTES = 7999
INT64_MAX = 2**63 - 1

LEVELS = st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200), st.integers(-32767, 32768))
FIRSTS = st.dictionaries(st.one_of(st.none(), LEVELS), st.integers(0, INT64_MAX), max_size=64)


def reach(firsts: Firsts, level: Level) -> int:
    """Return the first message of a level that is told of."""
    return min(firsts.get(level, INT64_MAX), firsts.get(None, INT64_MAX))


def told(ready: dict[int, Firsts]) -> dict[int, Firsts]:
    heard: dict[int, Firsts] = {}
    for payload in payloads("replica", ready):
        assert len(payload.encode()) <= MOST_BYTES
        replica, part = read_payload(payload)
        assert replica == "replica"
        assert not heard.keys() & part.keys()
        heard |= part
    return heard


@given(st.dictionaries(st.integers(1, INT64_MAX), FIRSTS, max_size=20))
def test_all_that_is_ready_is_told_of(ready: dict[int, Firsts]) -> None:
    heard = told(ready)
    assert heard.keys() == ready.keys()
    for queue_id, firsts in ready.items():
        assert all(reach(heard[queue_id], level) <= reach(firsts, level) for level in firsts if level is not None)
        assert heard[queue_id].get(None, INT64_MAX) <= firsts.get(None, INT64_MAX)


def test_levels_are_told_apart_as_long_as_they_fit() -> None:
    few: dict[int, Firsts] = {7: {("tenant", -5): 10, ("", 0): 20, None: 30}, 8: {}}
    assert told(few) == few
    many: dict[int, Firsts] = {7: {("\x01" * 200, rank): 10 + rank for rank in range(64)}}
    assert told(many) == {7: {None: 10}}


def test_queues_are_shared_out_among_few_payloads() -> None:
    ready: dict[int, Firsts] = {INT64_MAX - number: {None: INT64_MAX} for number in range(1000)}
    assert told(ready) == ready
    assert len(list(payloads("replica", ready))) <= 1000 * 50 // MOST_BYTES + 1
