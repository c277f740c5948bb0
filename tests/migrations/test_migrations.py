"""Migrations: safe from several processes at once, and the check of them finds what it is for."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from harness.postgres import MIGRATIONS, Databases
from migrations.check import MigrationError, check, lint

from app.store.migrations import configuration, migrate
from app.store.revision import is_behind

MIGRATION = """
from alembic import op

revision = "0099"
down_revision = {head!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in {statements!r}:
        op.execute(statement)


def downgrade() -> None:
    pass
"""


@pytest.fixture
def empty_database(postgres: Databases) -> Iterator[str]:
    """A database without a schema."""
    url = postgres.create_empty()
    yield url
    postgres.drop(url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the migrations, to add to."""
    copy = tmp_path / "alembic"
    (copy / "versions").mkdir(parents=True)
    for file in ("env.py", "script.py.mako", *(f"versions/{each.name}" for each in (MIGRATIONS / "versions").glob("*.py"))):
        (copy / file).write_text((MIGRATIONS / file).read_text())
    return copy


def ask(url: str, statement: str) -> list[object]:
    async def run() -> list[object]:
        connection = await asyncpg.connect(url)
        try:
            return [row[0] for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(run())


def head_of(folder: Path) -> str:
    return max(file.name.split("_")[3] for file in (folder / "versions").glob("*.py"))


def add_migration(folder: Path, *statements: str) -> None:
    text = MIGRATION.format(head=head_of(folder), statements=statements)
    (folder / "versions" / "2099_01_01_0099_more.py").write_text(text)


def test_three_processes_that_migrate_an_empty_database_at_once_all_succeed(empty_database: str) -> None:
    statement = "import sys, pathlib; from app.store.migrations import migrate; migrate(sys.argv[1], pathlib.Path(sys.argv[2]))"
    processes = [
        subprocess.Popen([sys.executable, "-c", statement, empty_database, MIGRATIONS], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    ended = [(process.communicate(timeout=100)[1], process.returncode) for process in processes]
    assert [status for _, status in ended] == [0, 0, 0], ended
    assert ask(empty_database, "select version_num from alembic_version") == [head_of(MIGRATIONS)]
    assert ask(empty_database, "select name from queue") == ["default"]
    assert ask(empty_database, "select count(*) from secret") == [1]


def test_migrating_again_changes_nothing(empty_database: str) -> None:
    migrate(empty_database, MIGRATIONS)
    secret = ask(empty_database, "select value from secret")
    migrate(empty_database, MIGRATIONS)
    assert ask(empty_database, "select value from secret") == secret


def test_the_service_knows_the_order_of_revisions_as_alembic_does() -> None:
    head, *older = (each.revision for each in ScriptDirectory.from_config(configuration(MIGRATIONS)).walk_revisions())
    assert not is_behind(head, MIGRATIONS)
    assert older
    assert all(is_behind(each, MIGRATIONS) for each in (*older, None))
    assert not is_behind("later", MIGRATIONS)


def test_two_databases_have_different_secrets(empty_database: str, database_url: str) -> None:
    migrate(empty_database, MIGRATIONS)
    (one,) = ask(empty_database, "select value from secret")
    assert isinstance(one, bytes)
    assert len(one) == 32
    assert len(set(one)) > 10
    # Databases made from the template share one: what differs is a database that was migrated by itself.
    assert ask(database_url, "select value from secret") != [one]


def test_a_migration_that_cannot_get_its_lock_gives_up_and_changes_nothing(empty_database: str, folder: Path) -> None:
    migrate(empty_database, folder)
    add_migration(folder, "alter table queue add column more int")
    env = folder / "env.py"
    env.write_text(env.read_text().replace("'5s'", "'100ms'"))
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(empty_database))
        runner.run(connection.execute("begin; select * from queue"))
        with pytest.raises(Exception, match="lock timeout"):
            migrate(empty_database, folder)
        runner.run(connection.close())
    assert ask(empty_database, "select version_num from alembic_version") == [head_of(MIGRATIONS)]
    migrate(empty_database, folder)
    assert ask(empty_database, "select version_num from alembic_version") == ["0099"]


def test_the_migrations_pass_their_check(empty_database: str) -> None:
    held = list(check(empty_database))
    assert held[0] == f"upgrade to {head_of(MIGRATIONS)}"
    assert len(held) == 4 + len(list((MIGRATIONS / "versions").glob("*.py")))


def test_the_check_finds_a_table_that_the_models_do_not_have(empty_database: str, folder: Path) -> None:
    add_migration(folder, "create table surplus (id bigint primary key)")
    with pytest.raises(MigrationError, match=r"differ.*surplus"):
        list(check(empty_database, folder))


def test_the_check_finds_a_column_that_the_models_do_not_have(empty_database: str, folder: Path) -> None:
    add_migration(folder, "alter table queue add column surplus int")
    with pytest.raises(MigrationError, match=r"differ.*surplus"):
        list(check(empty_database, folder))


def test_the_check_finds_a_downgrade_that_leaves_something(empty_database: str, folder: Path) -> None:
    initial = next((folder / "versions").glob("*_0001_*.py"))
    whole = initial.read_text()
    initial.write_text(whole.replace('for table in ("secret", ', "for table in ("))
    assert initial.read_text() != whole
    with pytest.raises(MigrationError, match="leaves tables behind: secret"):
        list(check(empty_database, folder))


REMADE_INDEX = "message_due on message (shard, available_at) where status = 'scheduled'"


def test_the_check_finds_a_statement_that_locks_out_a_busy_database(empty_database: str, folder: Path) -> None:
    # Dropped and made anew, so that only squawk can tell.
    add_migration(folder, "drop index message_due", f"create index {REMADE_INDEX}")
    with pytest.raises(MigrationError, match="concurrently"):
        list(check(empty_database, folder))


def test_an_index_can_be_made_without_locking_out_anybody(empty_database: str, folder: Path) -> None:
    add_migration(folder, "drop index concurrently if exists message_due", f"create index concurrently if not exists {REMADE_INDEX}")
    added = folder / "versions" / "2099_01_01_0099_more.py"
    text = added.read_text().replace("    for statement in", "    with op.get_context().autocommit_block():\n     for statement in")
    added.write_text(text)
    assert "0099 read by squawk" in list(check(empty_database, folder))


@pytest.mark.parametrize(
    "statement",
    [
        "create index i on message (id);",
        "alter table message add column n int not null;",
        "alter table message alter column priority type bigint;",
        "alter table message add constraint c check (priority > 0);",
        "alter table message rename column body to content;",
    ],
)
def test_squawk_refuses_what_is_unsafe(statement: str) -> None:
    with pytest.raises(MigrationError, match="squawk on 0099"):
        lint("0099", f"begin;\n{statement}\ncommit;\n")


@pytest.mark.parametrize(
    "statement", ["alter table message add column n bigint;", "alter table message add constraint c check (priority > 0) not valid;"]
)
def test_squawk_passes_what_is_safe(statement: str) -> None:
    lint("0099", f"begin;\n{statement}\ncommit;\n")
