"""Granting: leases on what is ready in one place, whatever messages Postgres refuses to lease there (design rule 10)."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import asyncpg
import structlog

from app.store.aside import Aside
from app.store.claim import Claim, Granted, GrantedLease, Place, claim, first_ready
from app.store.database import Pool

_MOST_SET_ASIDE = 4  # for one call at a time: else one that does not wait would, if Postgres refuses whatever is ready
_CLAIM_NAMES = "lease_of_worker"
"""The index by which a claim id has one set of leases."""

log = structlog.get_logger(__name__)


class NameTakenError(Exception):
    """A call has leases by its name: another replica has just granted them, or they ran out and wait to be reclaimed."""


class TooManyRefusedError(Exception):
    """So many messages were set aside for a call that it has none, this time."""


class Granting:
    """Grants leases, and sets aside what cannot be leased.

    Args:
        pool: where statements run.
        place: where the messages are.
        aside: the messages that are left alone.
        on_granted: hears of leases as soon as they are committed.
        on_set_aside: hears that one more message is left alone.

    """

    def __init__(
        self, pool: Pool, place: Place, aside: Aside, on_granted: Callable[[list[GrantedLease]], None], on_set_aside: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._place = place
        self._aside = aside
        self._on_granted = on_granted
        self._on_set_aside = on_set_aside

    async def grant(self, claims: Sequence[Claim]) -> list[Granted | Exception]:
        """Grant leases to calls, in order; if Postgres refuses, to each by itself, so that none pays for another.

        Returns what each got, or why it got nothing. What ends this early is told to those who are left: the others have their leases.
        """
        if len(claims) > 1:
            with contextlib.suppress(asyncpg.PostgresError):
                return [*await self._claim(claims)]
        outcomes: list[Granted | Exception] = []
        for each in claims:
            try:
                outcomes.append(await self._grant_alone(each))
            except (asyncpg.PostgresError, NameTakenError, TooManyRefusedError) as error:
                outcomes.append(error)
            except Exception as error:  # noqa: BLE001 - it is nobody's own
                return outcomes + [error] * (len(claims) - len(outcomes))
        return outcomes

    async def _claim(self, claims: Sequence[Claim]) -> list[Granted]:
        grants = await claim(self._pool, self._place, claims, self._aside.ids())
        if leases := [lease for grant in grants for lease in grant.leases]:
            self._on_granted(leases)
        return grants

    async def _grant_alone(self, wanted: Claim) -> Granted:
        """Grant leases to one call. Messages that cannot be leased are set aside."""
        for _ in range(_MOST_SET_ASIDE):
            try:
                return await self._grant_some(wanted)
            except asyncpg.PostgresError as error:
                if error.constraint_name == _CLAIM_NAMES:
                    raise NameTakenError from error
                await self._set_aside(error)
        raise TooManyRefusedError

    async def _grant_some(self, wanted: Claim) -> Granted:
        """Grant leases, half as many whenever Postgres refuses. If it refuses a single one, that message is the culprit."""
        most = wanted.max_messages
        while True:
            try:
                (granted,) = await self._claim([replace(wanted, max_messages=most)])
            except asyncpg.PostgresError as error:
                if most == 1 or error.constraint_name == _CLAIM_NAMES:
                    raise
                most //= 2
            else:
                granted.short |= len(granted.leases) == most < wanted.max_messages
                return granted

    async def _set_aside(self, error: asyncpg.PostgresError) -> None:
        """Leave the message alone that could not be leased."""
        culprit = await first_ready(self._pool, self._place, self._aside.ids())
        if culprit is None:
            raise error  # for no row's sake
        self._aside.put(culprit)
        log.error("row set aside", verb="claim", message_id=culprit, sqlstate=error.sqlstate, reason=type(error).__name__)
        self._on_set_aside()
