"""The columns of a batch: arrays that its statement reads with `unnest`, or by their subscripts."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sparse(column: Sequence[T | None]) -> Sequence[T | None]:
    """Leave out a column that says nothing, as most of what is optional does: past an array's end a statement finds null.

    Another column must have a value for each row.
    """
    return column if any(each is not None for each in column) else ()
