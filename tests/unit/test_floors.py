"""Where claims begin to look: what a floor leaves out has been taken, and all that may be ready is in some stretch."""

from hypothesis import given
from hypothesis import strategies as st

from app.leases.floors import Floors, Stretch, Taken

BUSY = 1000


def stretches(floors: Floors) -> list[Stretch]:
    return [Stretch(*columns) for columns in zip(*floors.stretches(), strict=True)]


def reached(floors: Floors, key: str, rank: int, message_id: int) -> int:
    """Count the stretches that a message is in."""
    return sum(
        stretch.first_key <= key < stretch.end_key
        and (
            stretch.first_rank is None
            or (
                (stretch.first_rank, stretch.first_id or 0) < (rank, message_id)
                and (stretch.end_rank is not None and rank < stretch.end_rank)
            )
        )
        for stretch in stretches(floors)
    )


def took(floors: Floors, key: str, rank: int, last: int, count: int = BUSY) -> None:
    floors.begin()
    floors.took([Taken((key, rank), count, last)])


def test_at_first_all_is_one_stretch() -> None:
    assert len(stretches(Floors())) == 1
    assert reached(Floors(), "", -32767, 1) == reached(Floors(), "\U0010ffff" * 200, 32768, 2**63 - 1) == 1


def test_a_level_has_a_floor_once_it_is_busy() -> None:
    floors = Floors()
    took(floors, "a", 0, 600, count=600)
    assert not floors
    took(floors, "a", 0, 1000, count=400)
    assert floors.columns() == [["a"], [0], [1000]]


def test_what_is_older_at_its_level_is_left_out_and_nothing_else() -> None:
    floors = Floors()
    took(floors, "b", 0, 2000)
    assert reached(floors, "b", 0, 2000) == 0
    for key, rank, message_id in [("b", 0, 2001), ("b", -1, 1), ("b", 1, 1), ("a", 0, 1), ("b\x01", 0, 1), ("c", 0, 1), ("", 0, 1)]:
        assert reached(floors, key, rank, message_id) == 1


def test_floors_that_are_left_are_there_again_with_the_first_that_is_taken() -> None:
    floors = Floors()
    took(floors, "a", 0, 2000)
    floors.leave()
    assert not floors
    assert reached(floors, "a", 0, 1) == 1
    took(floors, "b", 0, 2001, count=1)
    assert not floors
    took(floors, "a", 0, 2002, count=1)
    assert floors.columns() == [["a"], [0], [2002]]


def test_what_may_be_ready_again_is_reached_again() -> None:
    floors = Floors()
    took(floors, "a", 0, 2000)
    took(floors, "a", 5, 3000)
    floors.lower({None: 1500})
    assert [reached(floors, "a", rank, message_id) for rank in (0, 5) for message_id in (1499, 1500)] == [0, 1, 0, 1]


def test_what_became_ready_while_a_claim_was_under_way_is_reached() -> None:
    floors = Floors()
    took(floors, "a", 0, 2000)
    floors.begin()
    floors.lower({None: 2500})
    floors.lower({None: 2400})
    floors.took([Taken(("a", 0), 1, 2600)])
    assert [reached(floors, "a", 0, message_id) for message_id in (2399, 2400)] == [0, 1]
    floors.begin()
    floors.took([Taken(("a", 0), 1, 2700)])
    assert reached(floors, "a", 0, 2600) == 0


def test_what_is_ready_again_at_one_level_is_reached_again_and_no_other_level_is_walked_for_it() -> None:
    floors = Floors()
    for key, rank in (("a", 0), ("a", 5), ("b", 0)):
        took(floors, key, rank, 2000)
    floors.lower({("a", 5): 1500, ("c", 0): 1})
    assert [reached(floors, "a", 5, message_id) for message_id in (1499, 1500)] == [0, 1]
    assert reached(floors, "a", 0, 2000) == reached(floors, "b", 0, 2000) == 0


def test_what_became_ready_at_one_level_while_a_claim_was_under_way_is_reached_and_bounds_no_other() -> None:
    floors = Floors()
    for key in ("a", "b"):
        took(floors, key, 0, 2000)
    floors.begin()
    floors.lower({("a", 0): 2500})
    floors.took([Taken(("a", 0), 1, 2600), Taken(("b", 0), 1, 2700)])
    assert [reached(floors, "a", 0, message_id) for message_id in (2499, 2500)] == [0, 1]
    assert reached(floors, "b", 0, 2700) == 0


def test_of_too_many_levels_all_are_taken_to_begin_with_the_first_message_of_any() -> None:
    """What is remembered is bounded, and nothing is lost by it."""
    floors = Floors()
    took(floors, "a", 0, 2000)
    floors.begin()
    floors.lower({**{(f"key-{number}", 0): 5000 + number for number in range(10_000)}, ("b", 0): 2100})
    floors.took([Taken(("a", 0), 1, 2600)])
    assert [reached(floors, "a", 0, message_id) for message_id in (2099, 2100)] == [0, 1]


def test_only_the_busiest_of_late_have_floors() -> None:
    floors = Floors()
    for number in range(100):
        took(floors, f"key-{number:02}", 0, 2000)
    assert floors.columns()[0] == [f"key-{number}" for number in range(36, 100)]
    for number in range(100, 2000):
        took(floors, f"key-{number}", 0, 2000, count=1)
    took(floors, "key-100", 0, 3000, count=BUSY - 1)
    assert "key-100" not in floors.columns()[0], "the one of long ago is forgotten"


KEYS = st.text(alphabet="ab\x01\U0010ffff", max_size=3)
LEVELS = st.tuples(KEYS, st.integers(-32767, 32768))


@given(st.dictionaries(LEVELS, st.integers(BUSY, 10**6), max_size=8), LEVELS, st.integers(1, 2 * 10**6))
def test_every_message_is_in_one_stretch_unless_a_floor_leaves_it_out(
    taken: dict[tuple[str, int], int], level: tuple[str, int], message_id: int
) -> None:
    floors = Floors()
    for (key, rank), last in taken.items():
        took(floors, key, rank, last)
    for key, rank in (level, *taken):
        assert reached(floors, key, rank, message_id) == (message_id > taken.get((key, rank), 0))
    assert [each.first_key for each in stretches(floors)] == sorted(each.first_key for each in stretches(floors))
