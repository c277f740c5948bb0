"""What the service tells about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The process answers.

    Attributes:
        status: Always `ok`.
    """

    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a replica can serve.

    Attributes:
        status: `ready` or `not-ready`.
        database: `ok`, `unreachable` or `not-migrated`.
        timer_lag: Seconds by which the replica's timer is behind its plan. None while that is not known.
        version: The version of the service.
    """

    status: str
    database: str
    timer_lag: float | None
    version: str
