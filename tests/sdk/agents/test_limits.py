"""Deadlines and budgets."""

import math
import threading
import time

import pytest

from leasebeat.agents import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    TokenUsage,
    WorkInterruptedError,
)


def test_a_deadline_is_over_when_its_time_is_up() -> None:
    lasting = Deadline(60)
    lasting.check()
    assert 0 < lasting.remaining() <= 60
    deadline = Deadline(0.05)
    with pytest.raises(DeadlineExceededError, match=r"took longer than 0.05 s"):
        deadline.sleep(60)
    assert deadline.remaining() == 0


def test_a_deadline_without_a_time_lasts_until_it_is_cut() -> None:
    deadline = Deadline()
    assert deadline.remaining() == math.inf
    deadline.sleep(0.01)
    deadline.cut(WorkInterruptedError("the lease is lost"))
    deadline.cut(WorkInterruptedError("the worker stops"))
    assert deadline.remaining() == 0
    with pytest.raises(WorkInterruptedError, match="the lease is lost"):
        deadline.check()


def test_a_deadline_whose_time_is_up_is_not_cut() -> None:
    deadline = Deadline(0.0)
    deadline.check_cut()
    deadline.cut(WorkInterruptedError("the lease is lost"))
    with pytest.raises(WorkInterruptedError):
        deadline.check_cut()


def test_a_cut_ends_a_wait_at_once() -> None:
    deadline = Deadline(600)
    cut = threading.Timer(0.05, deadline.cut, [WorkInterruptedError("the worker stops")])
    cut.start()
    started = time.monotonic()
    with pytest.raises(WorkInterruptedError):
        deadline.sleep(60)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(max_total_tokens=15), "15 total tokens are used, 15 are allowed"),
        (Budget(max_input_tokens=9), "10 input tokens are used, 9 are allowed"),
        (Budget(max_output_tokens=5), "5 output tokens are used, 5 are allowed"),
    ],
)
def test_a_budget_is_used_up(budget: Budget, says: str) -> None:
    tracker = BudgetTracker(budget)
    tracker.check()
    tracker.record(TokenUsage(4, 2))
    tracker.check()
    tracker.record(TokenUsage(6, 3))
    with pytest.raises(BudgetExceededError, match=says):
        tracker.check()


def test_without_a_budget_tokens_are_only_added_up() -> None:
    tracker = BudgetTracker()
    tracker.record(TokenUsage(10**9, 1))
    tracker.check()
    assert tracker.used.total_tokens == 10**9 + 1
