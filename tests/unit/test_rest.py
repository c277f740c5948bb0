"""How often everything is looked at."""

import pytest

from app.store.rest import rest_after


@pytest.mark.parametrize(("look", "rest"), [(0, 1), (0.01, 1), (0.1, 5), (1, 50), (1.2, 60), (30, 60)])
def test_looks_at_everything_take_a_fiftieth_of_the_time(look: float, rest: float) -> None:
    assert rest_after(look) == pytest.approx(rest)
