"""How many callers serve each contender of bar 4 in Postgres best, in batches of 100: `python -m bench.peers.callers`, five minutes."""

from dataclasses import replace
from statistics import median

from bench.peers.install import MissingError
from bench.peers.lineup import LEASEBEAT, OTHERS, SINGLES, Contender
from bench.peers.turn import FailedError, Figure, Running
from bench.world import World, world

_CALLERS = (2, 4, 8, 16, 32)
_ROUNDS = 5
_TURN_S = 0.9
_WARM_UP_S = 0.5


def main() -> None:
    print("Jobs a second and jobs per CPU-second, by callers:", ", ".join(map(str, _CALLERS)))
    with world() as here:
        for contender in (LEASEBEAT, *OTHERS):
            if not contender.beside:
                print(f"{contender.name:16} {_shown(here, contender)}", flush=True)


def _shown(here: World, contender: Contender) -> str:
    try:
        with contender.run(here) as running:
            figures = _by_callers(contender, running)
    except (FailedError, MissingError) as error:
        return str(error)
    return "  ".join(
        f"{median(each.jobs_per_second for each in of_one):7,.0f} {median(each.jobs_per_cpu_second for each in of_one):7,.0f}"
        for of_one in figures.values()
    )


def _by_callers(contender: Contender, running: Running) -> dict[int, list[Figure]]:
    """Have all numbers of callers take turns, so that a slow moment is everybody's."""
    (batches,) = (mode for mode in contender.modes if mode != SINGLES)
    running.turn(batches, _WARM_UP_S)
    figures: dict[int, list[Figure]] = {callers: [] for callers in _CALLERS}
    for _ in range(_ROUNDS):
        for callers, found in figures.items():
            found.append(running.turn(replace(batches, callers=callers), _TURN_S))
    return figures


if __name__ == "__main__":
    main()
