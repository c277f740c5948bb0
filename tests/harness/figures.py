"""The background count of figures, as soon and as often as a test needs it."""

from harness.postgres import execute

ONCE, OFTEN = 100.0, 0.0
"""How long a count seems to take: so long that the next one comes after the test, or so short that it comes after ten seconds."""


def counting_takes(database_url: str, seconds: float) -> None:
    """Have each count of the figures seem to take this long, by which the service decides when the next one is due.

    Else one that a machine stood still in would put the next one off by minutes.
    """
    execute(
        database_url,
        "create function take() returns trigger language plpgsql as $$ begin new.took = tg_argv[0]::float8; return new; end $$",
    )
    execute(database_url, f"create trigger take before insert or update on figure for each row execute function take({seconds})")
