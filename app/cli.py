"""The command line: `leasebeat-server serve`, `migrate` and `openapi`."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, NoReturn

import structlog
import typer
import uvicorn
from pydantic import ValidationError

from app import embedded, logs
from app.front import Front
from app.main import create_app
from app.protocol import Protocol
from app.settings import Settings
from app.store.faults import UnavailableError

# Above the 60 s at which proxies cut, and above the SDK's 15 s, so that it is never the server that closes a connection in use (scar 24).
_KEEP_ALIVE_S = 75

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="The Leasebeat service.")
log = structlog.get_logger(__name__)


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind. Default: LEASEBEAT_HOST, or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind. Default: LEASEBEAT_PORT, or 8080.")] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="Migrate the database first. The embedded one always is.")] = False,
) -> None:
    """Serve HTTP, on the Postgres of DATABASE_URL or on an embedded one."""
    settings = Settings()
    settings = settings.model_copy(update={"host": host or settings.host, "port": settings.port if port is None else port})
    logs.configure(settings.log_level, settings.log_format)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _leave)
    with _database(settings) as url:
        if migrate or settings.database_url is None:
            _migrate(url, settings)
        log.info(
            "serving",
            url=f"http://{settings.host}:{settings.port}",
            database="embedded" if settings.database_url is None else "DATABASE_URL",
        )
        log.info("there are no access keys yet: whoever reaches this address can use the service")
        _Server(create_app(settings, url), settings).run()


@cli.command()
def migrate() -> None:
    """Bring the database's schema to this version's."""
    settings = Settings()
    logs.configure(settings.log_level, settings.log_format)
    with _database(settings) as url:
        _migrate(url, settings)
    log.info("migrated")


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    typer.echo(json.dumps(create_app(Settings(), "postgresql://").app.openapi(), indent=2))


def _migrate(url: str, settings: Settings) -> None:
    from app.store import migrations  # noqa: PLC0415 - Alembic takes a tenth of a start, and most starts find nothing to migrate

    migrations.migrate(url, settings.migrations)


class _Server(uvicorn.Server):
    """Answers parked claims when it is told to stop, so that nobody waits for work that will not come."""

    def __init__(self, front: Front, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                front,
                interface="asgi3",
                http=Protocol,
                ws="none",
                host=settings.host,
                port=settings.port,
                log_config=None,
                log_level=settings.log_level,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing depends on them, and each call would be looked through for them
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=settings.shutdown_grace,
            )
        )
        self._app = front.app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if service := getattr(self._app.state, "service", None):
            service.dismiss_soon()


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End the process in order. uvicorn raises the signal that stopped it anew, and by default that would end us before our clean-up."""
    sys.exit(0)


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[str]:
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    with embedded.running(settings.data_dir / "postgres", settings.postgres_bin) as postgres:
        postgres.keep_running()
        yield postgres.url


def main() -> None:
    """Run the command line; what is wrong with the settings or with Postgres is said in a line."""
    try:
        cli()
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False))
        sys.exit(f"leasebeat-server: a setting is wrong: {problems}")
    except embedded.EmbeddedPostgresError as error:
        sys.exit(f"leasebeat-server: {error}")
    except UnavailableError as error:
        sys.exit(f"leasebeat-server: the database does not answer: {error}")
