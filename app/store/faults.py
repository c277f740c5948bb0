"""What can go wrong below the service, told apart by what a caller can do about it.

StoreError
├── UnavailableError    Postgres does not answer: try again later
│   └── DeadlockError   it has undone the transaction for the sake of others
├── OverloadedError     too many calls wait already: try again later
└── RowFaultError       Postgres refuses this one row: trying again will not help
"""

import asyncio
import contextlib
from collections.abc import Iterator

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError


class StoreError(Exception):
    """The database could not do what was asked."""


class UnavailableError(StoreError):
    """The database does not answer."""


class DeadlockError(UnavailableError):
    """The database undid the transaction, which stood in the way of others."""


class OverloadedError(StoreError):
    """Too many calls are waiting for the database."""


class RowFaultError(StoreError):
    """The database refused a row."""


_GONE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,
    asyncpg.InternalClientError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    PoolTimeoutError,
)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turn every sign that Postgres is not there (down, starting, failing over, full, not migrated) into `UnavailableError`."""
    try:
        yield
    except (*_GONE, asyncpg.TransactionRollbackError, DBAPIError) as error:
        # SQLAlchemy wraps the driver's error.
        cause = error.orig and error.orig.__cause__ if isinstance(error, DBAPIError) else error
        if isinstance(cause, asyncpg.TransactionRollbackError):
            raise DeadlockError(type(cause).__name__) from error
        if isinstance(cause, _GONE):
            raise UnavailableError(type(cause).__name__) from error
        raise
