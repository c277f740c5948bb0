"""The Postgres of our own: its data, its one owner, and what it does after a crash."""

import asyncio
import contextlib
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest
from harness.postgres import FAST, programs
from harness.wait import until

from app.embedded import EmbeddedPostgres, EmbeddedPostgresError, running

AS_ROOT = os.geteuid() == 0

# Owns a data directory until it is killed, and says where its Postgres is.
OWNER = """
import sys, time
from pathlib import Path
from app.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None)
postgres.start()
print(postgres.url, postgres.pid, flush=True)
time.sleep(600)
"""


def ask(url: str, *statements: str) -> list[object]:
    """Run statements on one connection, and return the first column of the last one's rows."""

    async def run() -> list[object]:
        connection = await asyncpg.connect(url)
        try:
            return [[row[0] for row in await connection.fetch(statement)] for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(run())


def start(data: Path) -> EmbeddedPostgres:
    postgres = EmbeddedPostgres(data, programs(), FAST)
    postgres.start()
    return postgres


@contextmanager
def owner(data: Path) -> Iterator[tuple["subprocess.Popen[str]", str, int]]:
    """Run an owner in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", OWNER, data, programs() or ""], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url, pid = process.stdout.readline().split()
            try:
                yield process, url, int(pid)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGQUIT)  # which outlives its owner
        finally:
            process.kill()


def test_the_first_start_makes_the_data_directory_and_later_ones_keep_the_data(tmp_path: Path) -> None:
    data = tmp_path / "new" / "deep" / "data"
    with running(data, programs(), FAST) as postgres:
        assert ask(postgres.url, "create table kept as select 42 as n", "select n from kept") == [42]
        first_url = postgres.url
    assert (data / "PG_VERSION").exists()
    with running(data, programs(), FAST) as postgres:
        assert ask(postgres.url, "select n from kept") == [42]
        assert first_url != postgres.url, "each start takes a port that is free"


def test_one_object_keeps_its_address_over_restarts(tmp_path: Path) -> None:
    postgres = start(tmp_path / "data")
    url = postgres.url
    postgres.stop()
    postgres.start()
    assert postgres.url == url
    assert ask(url, "select 1") == [1]
    postgres.stop()


def test_it_stops_with_its_block_and_leaves_no_process_and_no_socket_folder(tmp_path: Path) -> None:
    with running(tmp_path / "data", programs(), FAST) as postgres:
        process = psutil.Process(postgres.pid)
        (sockets,) = ask(postgres.url, "show unix_socket_directories")
        assert Path(str(sockets)).is_dir()
    assert not process.is_running()
    assert not Path(str(sockets)).exists()
    assert not (tmp_path / "data" / "postmaster.pid").exists()
    with pytest.raises(EmbeddedPostgresError, match="not running"):
        _ = postgres.pid


def test_it_listens_on_loopback_alone_and_takes_its_options(tmp_path: Path) -> None:
    with running(tmp_path / "data", programs(), (*FAST, "max_connections=17")) as postgres:
        assert ask(postgres.url, "show max_connections") == ["17"]
        listening = {each.laddr.ip for each in psutil.Process(postgres.pid).net_connections("inet") if each.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}
        assert ask(postgres.url, "show server_encoding") == ["UTF8"]


def test_nobody_gets_in_without_its_password_which_only_we_can_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, programs(), FAST) as postgres:
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(with_password(postgres.url, "guess"), "select 1")
        assert stat.S_IMODE((data / "leasebeat.password").stat().st_mode) == 0o600


def test_a_directory_of_a_version_without_passwords_gets_one_and_keeps_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, programs(), FAST) as postgres:
        ask(postgres.url, "create table kept as select 42 as n", "alter role postgres password null", "select 1")
    (data / "leasebeat.password").unlink()
    (data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
    for _ in range(2):
        with running(data, programs(), FAST) as postgres:
            assert ask(postgres.url, "select n from kept") == [42]
            with pytest.raises(asyncpg.InvalidPasswordError):
                ask(with_password(postgres.url, "guess"), "select 1")


def with_password(url: str, password: str) -> str:
    return re.sub(r":[^:@]+@", f":{password}@", url)


def test_a_second_owner_is_refused_and_does_not_disturb_the_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, programs(), FAST) as first:
        second = EmbeddedPostgres(data, programs(), FAST)
        with pytest.raises(EmbeddedPostgresError, match=rf"{data} is in use by another process"):
            second.start()
        second.stop()
        assert ask(first.url, "select 1") == [1]
    second.start()
    assert ask(second.url, "select 1") == [1]
    second.stop()


def test_a_second_owner_in_another_process_is_refused(tmp_path: Path) -> None:
    with owner(tmp_path / "data") as (_, url, _):
        with pytest.raises(EmbeddedPostgresError, match="in use by another process"):
            start(tmp_path / "data")
        assert ask(url, "select 1") == [1]


def test_the_postgres_of_a_killed_owner_is_taken_over_with_its_data(tmp_path: Path) -> None:
    with owner(tmp_path / "data") as (process, url, pid):
        ask(url, "create table kept as select 42 as n")
        process.kill()
        process.wait(60)
        orphan = psutil.Process(pid)
        assert orphan.is_running()
        postgres = start(tmp_path / "data")
        try:
            until(lambda: not orphan.is_running())
            assert ask(postgres.url, "select n from kept") == [42]
        finally:
            postgres.stop()


def test_after_a_crash_of_postgres_itself_the_next_start_recovers(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "data", programs())
    postgres.start()
    ask(postgres.url, "create table kept as select 42 as n")
    postgres.stop(signal.SIGQUIT)
    postgres.start()
    assert ask(postgres.url, "select n from kept") == [42]
    postgres.stop()


def test_a_stale_pid_file_that_names_somebody_elses_process_harms_nobody(tmp_path: Path) -> None:
    """A process id is used again soon in a container: after a crash it may belong to anybody, ourselves included."""
    data = tmp_path / "data"
    start(data).stop()
    account = data.stat()
    with subprocess.Popen(
        ["sleep", "600"], user=account.st_uid if AS_ROOT else None, group=account.st_gid if AS_ROOT else None
    ) as bystander:
        try:
            (data / "postmaster.pid").write_text(f"{bystander.pid}\n{data}\n1700000000\n5432\n/tmp\n127.0.0.1\n    123456    0\nready   \n")
            postgres = start(data)
            assert ask(postgres.url, "select 1") == [1]
            postgres.stop()
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize("text", ["", "\n", "999999999\n"])
def test_a_pid_file_that_names_no_process_stops_nothing(tmp_path: Path, text: str) -> None:
    start(tmp_path / "data").stop()
    (tmp_path / "data" / "postmaster.pid").write_text(text)
    with running(tmp_path / "data", programs(), FAST) as postgres:
        assert ask(postgres.url, "select 1") == [1]


def test_a_data_directory_that_is_half_made_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    half = tmp_path / "data.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    (half / "base").mkdir()
    with running(tmp_path / "data", programs(), FAST) as postgres:
        assert ask(postgres.url, "select 1") == [1]
    assert not half.exists()


def killed_half_way(data: Path) -> bool:
    """Kill an owner while it makes its data directory. Returns whether that came in time: a machine that stands still lets it finish."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, data, programs() or ""], stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        until(lambda: data.exists() or (data.with_name("data.new") / "global").exists())
        for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # initdb's own children come and go
                each.kill()
    return not data.exists()


def test_initdb_killed_half_way_leaves_nothing_that_stops_the_next_start(tmp_path: Path) -> None:
    data = next(data for n in range(20) if killed_half_way(data := tmp_path / str(n) / "data"))
    with running(data, programs(), FAST) as postgres:
        assert ask(postgres.url, "select 1") == [1]


def test_a_start_that_fails_says_why_and_gives_the_directory_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broken = EmbeddedPostgres(data, programs(), ("no_such_setting=1",))
    with pytest.raises(EmbeddedPostgresError, match=rf"its log is {data}/postgres.log"):
        broken.start()
    assert "no_such_setting" in (data / "postgres.log").read_text()
    with running(data, programs(), FAST) as postgres:
        assert ask(postgres.url, "select 1") == [1]


@pytest.mark.skipif(not AS_ROOT, reason="only root may run as somebody else")
def test_as_root_it_runs_as_another_user_below_a_folder_that_only_root_may_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with running(closed / "data", programs(), FAST) as postgres:
        assert psutil.Process(postgres.pid).username() == pwd.getpwuid((closed / "data").stat().st_uid).pw_name != "root"
        assert ask(postgres.url, "select 1") == [1]
    assert stat.S_IMODE(closed.stat().st_mode) & 0o066 == 0, "others may pass through, and still not read"
    assert stat.S_IMODE((closed / "data").stat().st_mode) == 0o700


def test_programs_that_are_not_there_are_an_error_that_names_them(tmp_path: Path) -> None:
    with pytest.raises((EmbeddedPostgresError, FileNotFoundError), match="initdb"):
        EmbeddedPostgres(tmp_path / "data", tmp_path).start()
