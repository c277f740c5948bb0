"""How the bench judges what it has measured."""

from itertools import count

import pytest

from bench.bars import Bar, in_turn, missing, ratio
from bench.load import read
from bench.redelivery import Delivery, Redelivered
from bench.results import kept, table
from bench.windows import growth

WRK = """Running 2s test @ http://127.0.0.1:42751/beat
  1 threads and 128 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   236.91ms  280.94ms   1.40s    85.39%
    Req/Sec     0.96k   455.00     1.53k    64.71%
  Latency Distribution
     50%   98.90ms
     75%  243.34ms
     90%  675.59ms
     99%  {p99}
  1643 requests in 2.04s, 553.55KB read
{more}Requests/sec:    806.81
Transfer/sec:    271.82KB
"""


@pytest.mark.parametrize(("p99", "seconds"), [("  1.23s ", 1.23), (" 35.60ms", 0.0356), ("642.00us", 0.000642)])
def test_what_wrk_prints_is_read_in_each_of_its_units(p99: str, seconds: float) -> None:
    load = read(WRK.format(p99=p99, more=""))
    assert (load.rate, load.requests) == (806.81, 1643)
    assert load.p99 == pytest.approx(seconds)


@pytest.mark.parametrize("more", ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"])
def test_a_load_that_was_not_all_answered_is_refused(more: str) -> None:
    with pytest.raises(RuntimeError, match="not every request"):
        read(WRK.format(p99=" 35.60ms", more=more))


def test_a_value_and_its_reference_are_measured_by_turns_and_the_first_one_changes() -> None:
    moment = count()
    assert in_turn(4, lambda: next(moment), lambda: next(moment)) == [(0, 1), (3, 2), (4, 5), (7, 6)]


def test_windows_that_a_machine_spoils_do_not_decide() -> None:
    spoilt = [(10.0, 100.0), (100.0, 10.0)]
    assert ratio(9, "beats", [(95.0, 100.0)] * 5 + spoilt, 0.9).value == 0.95


def test_growth_is_what_goes_on_growing() -> None:
    late_pass_of_vacuum = [23.7] * 10 + [32.7] * 110
    steady = [100 + 11 * window / 119 for window in range(120)]
    assert growth(late_pass_of_vacuum) == 1
    assert growth(steady) > 1.07
    assert growth([100.0] * 80 + [108.0] * 40) == 1.08


def test_what_is_only_shown_has_no_verdict() -> None:
    shown = ratio(4, "beside", [(1.0, 2.0)], None)
    assert kept(shown) == {"bar": 4, "name": "beside", "value": 0.5, "target": None, "ok": None}
    assert missing(4, "beside", None, at_most=False, unit="ratio", why="it is not installed").ok is None
    held = [Bar(7, "late", value, 0, at_most=True, unit="ms") for value in (0, 1, None)]
    assert [bar.ok for bar in held] == [True, False, False]
    verdicts = [line.split()[-1] for line in table([shown, *held]).splitlines()[1:]]
    assert verdicts == ["none", "yes", "NO", "NO"]


@pytest.mark.parametrize(
    ("deliveries", "after", "lost", "twice"),
    [
        ([(1, 0.0, 2.0), (2, 2.5, 9.0)], [0.5], 0, 0),
        ([(2, 2.5, 9.0), (1, 0.0, 2.0)], [0.5], 0, 0),
        ([(1, 0.0, 2.0)], [], 1, 0),
        ([(1, 0.0, 2.0), (2, 1.5, 9.0)], [], 0, 1),
        ([(1, 0.0, 2.0), (1, 2.5, 4.5)], [], 0, 1),
        ([(1, 0.0, 2.0), (2, 2.5, 9.0), (3, 9.5, 12.0)], [0.5], 0, 1),
    ],
    ids=["as it was to", "answers read late", "never", "while it is leased", "as the first attempt again", "twice"],
)
def test_a_redelivery_is_timed_if_it_was_due_and_the_only_one(
    deliveries: list[tuple[int, float, float]], after: list[float], lost: int, twice: int
) -> None:
    found = Redelivered(sent=1)
    found.deliveries["message"] += [Delivery(*each) for each in deliveries]
    assert (found.after, found.lost, found.twice) == (after, lost, twice)
