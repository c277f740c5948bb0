"""Whose turn it is among fairness keys."""

from hypothesis import given
from hypothesis import strategies as st

from app.leases.rotation import Rotation, Visit


def test_it_starts_before_the_first_key_with_nothing_left() -> None:
    assert Rotation() == Rotation(fairness_key="", left=0)


def test_a_turn_that_found_nothing_is_over() -> None:
    rotation = Rotation("b", 3)
    rotation.advance([])
    assert rotation == Rotation("b", 0)


def test_it_stands_at_the_key_visited_last() -> None:
    rotation = Rotation()
    rotation.advance([Visit("a", quantum=1, allowance=1, taken=1), Visit("b", quantum=1, allowance=1, taken=1)])
    assert rotation == Rotation("b", 0)


def test_a_key_whose_visit_a_full_batch_cut_short_keeps_the_rest_of_its_quantum() -> None:
    rotation = Rotation()
    rotation.advance([Visit("a", quantum=5, allowance=5, taken=5), Visit("b", quantum=5, allowance=2, taken=2)])
    assert rotation == Rotation("b", 3)


def test_a_key_that_ran_dry_keeps_nothing() -> None:
    rotation = Rotation("a", 4)
    rotation.advance([Visit("a", quantum=5, allowance=2, taken=1)])
    assert rotation == Rotation("a", 0)


visits = st.integers(0, 50).flatmap(
    lambda quantum: st.integers(0, quantum).flatmap(
        lambda allowance: st.builds(
            Visit, st.text(max_size=3), st.just(quantum), st.just(allowance), st.integers(0, allowance) if allowance else st.just(0)
        )
    )
)


@given(st.lists(visits, min_size=1))
def test_what_is_left_is_never_more_than_the_last_visit_was_owed(made: list[Visit]) -> None:
    rotation = Rotation("z", 99)
    rotation.advance(made)
    assert rotation.fairness_key == made[-1].fairness_key
    assert 0 <= rotation.left <= made[-1].quantum - made[-1].taken
