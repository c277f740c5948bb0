"""Leasebeat through HTTP against other queues, each doing the same job: durable send, take, keep alive once, finish."""

import statistics
from collections.abc import Callable, Iterator

from bench.bars import Bar, Scale, missing, ratio
from bench.peers.install import MissingError
from bench.peers.lineup import LEASEBEAT, OTHERS, Contender
from bench.peers.turn import FailedError, Figure, turn
from bench.world import World, world

_NUMBER = 4
_QUICK_S = 0.3
_MOST_S = 1.2
_MEASURES: dict[str, Callable[[Figure], float]] = {
    "jobs/s": lambda figure: figure.jobs_per_second,
    "jobs per CPU-second": lambda figure: figure.jobs_per_cpu_second,
}


def measure(scale: Scale) -> list[Bar]:
    """Let every contender take its turn in each round; those that are no queue in Postgres are only shown, and play the first one."""
    match = _Match(_QUICK_S if scale.rounds == 1 else min(scale.seconds, _MOST_S))
    with world() as here:
        for number in range(scale.rounds):
            match.play(here, LEASEBEAT)
            for other in OTHERS:
                if number == 0 or not other.beside:
                    match.play(here, other)
    return [bar for other in OTHERS for bar in match.bars(other)]


class _Match:
    """All turns of all rounds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._figures: dict[tuple[str, str], list[Figure]] = {}
        self._failed: dict[str, str] = {}

    def play(self, here: World, contender: Contender) -> None:
        """Let a contender take its turn in each mode, unless it has failed before."""
        if contender.name in self._failed:
            return
        try:
            with contender.run(here) as (client, processes):
                for mode in contender.modes:
                    self._figures.setdefault((contender.name, mode.name), []).append(turn(client, processes, mode, self._seconds))
        except (FailedError, MissingError) as error:
            self._failed[contender.name] = f"{contender.name}: {error}"

    def bars(self, contender: Contender) -> Iterator[Bar]:
        """Hold Leasebeat's figures against another's, round by round."""
        target = 0.0 if contender.beside else 1.0
        why = self._failed.get(LEASEBEAT.name) or self._failed.get(contender.name)
        for mode in contender.modes:
            for measure, read in _MEASURES.items():
                name = f"{contender.name}, {mode.name}: {measure}"
                if why is not None:
                    yield missing(_NUMBER, name, target, at_most=False, unit="ratio", why=why)
                    continue
                ours, theirs = self._figures[LEASEBEAT.name, mode.name], self._figures[contender.name, mode.name]
                pairs = [(read(our), read(their)) for our, their in zip(ours, theirs, strict=False)]
                note = "; ".join(filter(None, [f"{_shown(ours)} against {_shown(theirs)}", contender.note, _with_drivers(ours, theirs)]))
                yield ratio(_NUMBER, name, pairs, target, note=note)


def _with_drivers(ours: list[Figure], theirs: list[Figure]) -> str:
    """Say by how much Leasebeat is ahead per CPU-second if who drives a service is counted too, on either side."""
    ratios = [their.with_driver / our.with_driver for our, their in zip(ours, theirs, strict=False)]
    return f"{statistics.median(ratios):.3g} per CPU-second with drivers"


def _shown(figures: list[Figure]) -> str:
    """Say in numbers what a contender did: CPU-seconds are for 1,000 jobs, of service and database, and apart of who drives them."""

    def median(read: Callable[[Figure], float]) -> float:
        return statistics.median(map(read, figures))

    driver = median(lambda figure: figure.client)
    return (
        f"{median(lambda figure: figure.jobs_per_second):,.0f}/s, "
        f"CPU {median(lambda figure: figure.service):.3f}+{median(lambda figure: figure.database):.3f} s"
        f"{f' (driver {driver:.3f})' if driver else ''}"
    )
