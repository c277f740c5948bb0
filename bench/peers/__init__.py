"""Leasebeat through HTTP against other queues, each doing the same job: durable send, take, keep alive once, finish."""

import statistics
from collections.abc import Callable, Iterator, Sequence

from bench.bars import Bar, Scale, in_turn, missing, ratio
from bench.peers.install import MissingError
from bench.peers.lineup import LEASEBEAT, OTHERS, Contender
from bench.peers.turn import FailedError, Figure, Mode, Running
from bench.world import World, world

_NUMBER = 4
_QUICK_S = 0.3
_MOST_S = 0.9
_WARM_UP = 0.25
_WITH_DRIVERS = "jobs per CPU-second with drivers"
_MEASURES: dict[str, Callable[[Figure], float]] = {
    "jobs/s": lambda figure: figure.jobs_per_second,
    "jobs per CPU-second": lambda figure: figure.jobs_per_cpu_second,
    _WITH_DRIVERS: lambda figure: 1000 / figure.with_driver,
}

Pairs = list[tuple[Figure, Figure]]
"""Leasebeat's figures and another's, of one round each."""


def measure(scale: Scale) -> list[Bar]:
    """Match Leasebeat with one contender after another; in half the time with those that are no queue in Postgres, and are only shown."""
    seconds = _QUICK_S if scale.rounds == 1 else min(scale.seconds, _MOST_S)
    with world() as here:
        return [bar for other in OTHERS for bar in _match(here, other, scale.rounds, seconds / 2 if other.beside else seconds)]


def _match(here: World, other: Contender, rounds: int, seconds: float) -> list[Bar]:
    """Let Leasebeat and another take turns in each mode, each on a new database of its own."""
    try:
        with LEASEBEAT.run(here) as ours, other.run(here) as theirs:
            played = [(mode, _play(ours, theirs, mode, rounds, seconds)) for mode in other.modes]
    except (FailedError, MissingError) as error:
        return [bar for mode in other.modes for bar in _missing(other, mode, str(error))]
    return [bar for mode, pairs in played for bar in _bars(other, mode, pairs)]


def _play(ours: Running, theirs: Running, mode: Mode, rounds: int, seconds: float) -> Pairs:
    """Play so many rounds right after one another. While one has its turn, the other stands still."""
    (our_mode,) = (each for each in LEASEBEAT.modes if each.name == mode.name)

    def our_turn(length: float = seconds) -> Figure:
        with theirs.still():
            return ours.turn(our_mode, length)

    def their_turn(length: float = seconds) -> Figure:
        with ours.still():
            return theirs.turn(mode, length)

    our_turn(seconds * _WARM_UP)
    their_turn(seconds * _WARM_UP)
    return in_turn(rounds, our_turn, their_turn)


def _bars(other: Contender, mode: Mode, pairs: Pairs) -> Iterator[Bar]:
    """Hold Leasebeat's figures against another's, round by round."""
    ours, theirs = zip(*pairs, strict=True)
    note = "; ".join(filter(None, [f"{_shown(ours)} against {_shown(theirs)}", other.note]))
    for measure, read in _MEASURES.items():
        values = [(read(our), read(their)) for our, their in pairs]
        yield ratio(_NUMBER, _name(other, mode, measure), values, _target(other, measure), note=note)


def _missing(other: Contender, mode: Mode, why: str) -> Iterator[Bar]:
    for measure in _MEASURES:
        yield missing(_NUMBER, _name(other, mode, measure), _target(other, measure), at_most=False, unit="ratio", why=why)


def _name(other: Contender, mode: Mode, measure: str) -> str:
    return f"{other.name}, {mode.name}: {measure}"


def _target(other: Contender, measure: str) -> float | None:
    return None if other.beside or measure == _WITH_DRIVERS else 1.0


def _shown(figures: Sequence[Figure]) -> str:
    """Say in numbers what a contender did: CPU-seconds are for 1,000 jobs, of service and database, and apart of who drives them."""

    def median(read: Callable[[Figure], float]) -> float:
        return statistics.median(map(read, figures))

    driver = median(lambda figure: figure.client)
    return (
        f"{median(lambda figure: figure.jobs_per_second):,.0f}/s, "
        f"CPU {median(lambda figure: figure.service):.3f}+{median(lambda figure: figure.database):.3f} s"
        f"{f' (driver {driver:.3f})' if driver else ''}"
    )
