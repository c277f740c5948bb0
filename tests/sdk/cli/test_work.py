"""`work`: what a program gets, and what becomes of what it prints and how it ends."""

import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.server import Server
from harness.wait import until
from sdk.cli.command import TIMEOUT_S, Command, finished, is_alive, read_pid, stop, until_gone
from sdk.running import until_extended

from leasebeat import Client, Message, SentMessage
from leasebeat.cli._guard import Guard

EXAMPLE = Path(__file__).parents[3] / "examples" / "work.sh"
MIB = 1024 * 1024

Work = Callable[..., "subprocess.Popen[bytes]"]
Stop = Callable[[Client, str, "subprocess.Popen[bytes]"], None]


@pytest.fixture
def work(command: Command, queue: str) -> Iterator[Work]:
    """Start `leasebeat work` on the queue, with a program in shell; it ends with the test."""
    with ExitStack() as stack:

        def start(script: str, *options: str, **more: Any) -> "subprocess.Popen[bytes]":
            streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
            return stack.enter_context(command.running("work", queue, *options, "--", "/bin/sh", "-c", script, **streams))

        yield start


class Shell:
    """One worker for all tests that need none of their own. It runs the body of each message as a shell script."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    def send(self, script: str, **options: Any) -> SentMessage:
        return self._client.send(self._queue, script, **options)

    def run(self, script: str, **options: Any) -> Message:
        return finished(self._client, self.send(script, **options).id)


@pytest.fixture(scope="module")
def shell(server: Server) -> Iterator[Shell]:
    queue = f"cli-shell-{uuid.uuid4().hex[:8]}"
    worker = ("work", queue, "--raw", "--concurrency", "4", "--", "/bin/sh")
    with Client(server.url) as client:
        client.put_queue(queue, visibility_timeout=300, beat_interval=0)
        with Command(server.url).running(*worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            yield Shell(client, queue)
        client.delete_queue(queue, force=True)


# --- what a program gets ----------------------------------------------------------------------------------------------


def test_a_program_gets_body_and_facts_and_its_last_json_line_is_the_output(client: Client, queue: str, work: Work) -> None:
    script = """
        read -r body
        echo "not JSON"
        printf '{"body": %s, "queue": "%s", "id": "%s", "generation": %s, "attempt": %s, "headers": %s, "worker": "%s", "none": "%s"}\\n' \
            "$body" "$LEASEBEAT_QUEUE" "$LEASEBEAT_MESSAGE_ID" "$LEASEBEAT_GENERATION" "$LEASEBEAT_ATTEMPT" "$LEASEBEAT_HEADERS" \
            "$LEASEBEAT_WORKER_ID" "$LEASEBEAT_PROGRESS$LEASEBEAT_DETAIL$LEASEBEAT_TASK_ID${LEASEBEAT_RECEIPT-unset}"
        echo "{ not JSON either"
    """
    sent = client.send(queue, {"file": "ä.wav"}, headers={"lang": "de"})
    work(script, "--worker-id", "shell", environment={"LEASEBEAT_TASK_ID": "of a worker around", "LEASEBEAT_RECEIPT": "the same"})
    done = finished(client, sent.id)
    assert done.output == {
        "body": {"file": "ä.wav"},
        "queue": queue,
        "id": sent.id,
        "generation": 1,
        "attempt": 1,
        "headers": {"lang": "de"},
        "worker": "shell",
        "none": "unset",
    }


@pytest.mark.parametrize(("options", "given"), [((), '"two\\nlines"\n'), (("--raw",), "two\nlines")])
def test_a_string_is_given_as_json_or_raw(client: Client, queue: str, work: Work, tmp_path: Path, options: tuple[str], given: str) -> None:
    sent = client.send(queue, "two\nlines")
    work(f"cat >{tmp_path}/body", *options)
    assert finished(client, sent.id).output is None
    assert (tmp_path / "body").read_text() == given


def test_a_program_that_may_have_the_receipt_settles_by_itself(client: Client, queue: str, work: Work) -> None:
    sent = client.send(queue, 1)
    work(f"{sys.executable} -m leasebeat nack --final --error 'by itself'", "--pass-receipt")
    done = finished(client, sent.id)
    assert (done.status, done.error, done.failed_count) == ("failed", "by itself", 1)


def test_one_worker_works_on_several_queues_and_several_messages_at_once(
    command: Command, client: Client, queue: str, tmp_path: Path
) -> None:
    other = f"{queue}-other"
    client.put_queue(other)
    sent = [client.send(name, number).id for number, name in enumerate([queue, other, queue, other])]
    script = f"touch {tmp_path}/$LEASEBEAT_MESSAGE_ID; while [ $(ls {tmp_path} | wc -l) -lt 4 ]; do echo waits; sleep 0.1; done"
    with command.running("work", queue, "--queue", other, "--concurrency", "4", "--quiet", "--", "sh", "-c", script):
        assert {finished(client, message_id).status for message_id in sent} == {"completed"}
    client.delete_queue(other, force=True)


def test_more_programs_than_there_may_be_open_files_are_refused_at_once(command: Command) -> None:
    line = f"ulimit -n 128; exec {sys.executable} -m leasebeat work default --concurrency 10 -- true"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=command.environment(), timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 2
    assert "a concurrency of 10 needs 164 open files, and 128 are allowed" in ran.stderr


# --- what it prints ---------------------------------------------------------------------------------------------------


def test_printed_lines_extend_the_lease(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    sent = client.send(queue, 1)
    work(f"while [ ! -e {tmp_path}/enough ]; do echo a line; sleep 0.1; done")
    until_extended(client, queue)
    (tmp_path / "enough").touch()
    done = finished(client, sent.id)
    assert (done.status, done.generation, done.expired_count) == ("completed", 1, 0)
    assert done.progress is not None
    assert done.progress > 2


def test_reports_set_progress_and_detail_from_which_the_next_attempt_resumes(shell: Shell) -> None:
    script = """
        if [ -n "$LEASEBEAT_PROGRESS" ]; then
            echo "{\\"from\\": $LEASEBEAT_PROGRESS, \\"at\\": $LEASEBEAT_DETAIL}"
            echo '{"progress": 4000}'
            echo '{"progress": "more"}'
        else
            echo a line
            echo '{"progress": 1000, "detail": {"page": 3}}'
            echo a line that counts no more
            exit 1
        fi
    """
    done = shell.run(script)
    assert done.output == {"from": 1000, "at": {"page": 3}}, "a report is no output"
    assert (done.attempt_count, done.detail) == (1, {"page": 3})


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("printf 3", 3),
        ("echo null; echo '[1]'; echo NaN; echo 1e", [1]),
        ("echo '\"text\"'; printf '\\377\\n'; printf '{\"a\":\\n'", "text"),
        ("echo '{}'; echo '{\"detail\": 1}'", {}),
        ("echo 1; yes '[' | head -n 100000 | tr -d '\\n'; echo", 1),
        (r"""printf '%s\n' '"\\\\u0000"' '[1e400]' '"a\u0000b"' '{"\ud800": 1}' '"\uDC00"'""", r"\\u0000"),
    ],
    ids=[
        "without its end of line",
        "an array",
        "a string",
        "an empty object",
        "before what is nested too deep",
        "before what is not storable",
    ],
)
def test_which_line_is_the_output(shell: Shell, script: str, output: object) -> None:
    assert shell.run(script).output == output


def test_what_programs_print_is_passed_on_as_it_is(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    printed = os.urandom(3 * MIB)  # a few thousand lines, none of them text
    (tmp_path / "printed").write_bytes(printed)
    sent = client.send(queue, 1)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = work(f"cat {tmp_path}/printed; echo a word >&2", stdout=out, stderr=err)
        assert finished(client, sent.id).status == "completed"
        assert stop(process) == 0
    assert (tmp_path / "out").read_bytes() == printed
    assert b"a word\n" in (tmp_path / "err").read_bytes()


def test_quiet_drops_output_but_not_errors(client: Client, queue: str, work: Work) -> None:
    process = work("echo secret; echo a word >&2", "--quiet", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert finished(client, client.send(queue, 1).id).status == "completed"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (out, err.splitlines()[0]) == (b"", b"a word")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_who_does_not_read_holds_up_no_beat(client: Client, queue: str, work: Work, tmp_path: Path, stream: str) -> None:
    sent = client.send(queue, 1)
    much = f"yes 'a line of thirty characters' | head -c {3 * MIB} >&{1 if stream == 'stdout' else 2}"
    process = work(
        f"{much}; touch {tmp_path}/printed; while [ ! -e {tmp_path}/enough ]; do echo a line; sleep 0.1; done; echo 5",
        **{stream: subprocess.PIPE},
    )
    until((tmp_path / "printed").exists)
    until_extended(client, queue)
    (tmp_path / "enough").touch()
    done = finished(client, sent.id)
    assert (done.output, done.generation, done.expired_count) == (5, 1, 0)
    assert stop(process) == 0


def test_a_reader_that_shares_its_pipe_without_blocking_misses_nothing(client: Client, queue: str, work: Work) -> None:
    """Whoever starts us may have set that, for its own end of a terminal that we share."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    process = work("seq 30000", stdout=write_end)
    os.close(write_end)
    assert finished(client, client.send(queue, 1).id).output == 30_000
    with os.fdopen(read_end, "rb") as out:
        assert list(itertools.islice(out, 30_000)) == [b"%d\n" % number for number in range(1, 30_001)]
        process.send_signal(signal.SIGTERM)
        assert out.read() == b""


def test_what_a_reader_misses_is_counted(client: Client, queue: str, work: Work) -> None:
    """What it reads, once it does, are whole lines, as many as were held for it."""
    sent = client.send(queue, 1)
    line = b"a line of thirty-two characters\n"
    process = work(f"yes '{line.decode().strip()}' | head -c {3 * MIB}; echo 5", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert finished(client, sent.id).status == "completed"
    assert process.stdout
    assert process.stderr
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(process.stdout.read)
        told = (re.search(rb"Nobody read standard output: (\d+) bytes that programs printed were dropped", line) for line in process.stderr)
        dropped = next(found[1] for found in told if found)
        process.send_signal(signal.SIGTERM)
        out = reading.result(TIMEOUT_S)
    assert len(out) + int(dropped) == 3 * MIB + len(b"5\n")
    assert len(out) > MIB
    assert set(out.splitlines(keepends=True)) <= {line, b"5\n"}


def test_a_reader_of_our_output_that_leaves_does_not_stop_the_work(client: Client, queue: str, work: Work) -> None:
    process = work("seq 100000", stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    assert finished(client, client.send(queue, 1).id).output == 100_000
    assert process.poll() is None


def test_half_a_million_lines_and_one_without_an_end_are_read_in_bounded_memory(client: Client, queue: str, work: Work) -> None:
    process = work("yes 'this is a line of fifty characters without a number' | head -n 500000; head -c 180000000 /dev/zero; echo; echo 5")
    assert finished(client, client.send(queue, 1).id).output == 5
    peak = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 150 * 1024, "half of what was printed would already be more"


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_another_exit_is_a_nack_with_the_tail_of_the_errors(shell: Shell) -> None:
    done = shell.run("seq 100000 >&2; echo disk full >&2; echo 5; exit 75", max_attempts=1)
    assert (done.status, done.output) == ("failed", None)
    assert done.error
    first, *tail = done.error.splitlines()
    assert first == "ProgramError: exit status 75"
    assert tail[-2:] == ["100000", "disk full"]
    assert 4000 < len("\n".join(tail)) <= 4096


@pytest.mark.parametrize(
    ("script", "error"),
    [("kill -SEGV $$", "ProgramError: killed by SIGSEGV"), ("exec /no/such/program 2>/dev/null", "ProgramError: exit status 127")],
)
def test_how_a_program_died_is_said(shell: Shell, script: str, error: str) -> None:
    assert shell.run(script, max_attempts=1).error == error


def test_how_a_program_ends_is_heard_also_where_nobody_wanted_to_hear_it(command: Command, client: Client, queue: str) -> None:
    """Whoever starts the worker may ignore SIGCHLD, which it inherits: then the system keeps no status of a child."""
    sent = client.send(queue, 1, max_attempts=1)
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    worker = [sys.executable, "-m", "leasebeat", "work", queue, "--", "/bin/sh", "-c", "exit 3"]
    with subprocess.Popen([sys.executable, "-c", ignoring, *worker], env=command.environment(), stderr=subprocess.DEVNULL) as process:
        try:
            assert finished(client, sent.id).error == "ProgramError: exit status 3"
        finally:
            stop(process)


def test_a_program_that_cannot_be_started_fails_its_message_only(shell: Shell) -> None:
    """Its headers are more than the system takes as an environment."""
    heavy = shell.run("true", headers={str(number): "ä" * 2000 for number in range(50)}, max_attempts=1)
    assert heavy.error == "ProgramError: cannot be started: Argument list too long"
    assert shell.run("true").status == "completed"


def test_a_large_body_that_is_never_read_holds_up_nothing(client: Client, queue: str, work: Work) -> None:
    sent = client.send(queue, "x" * 250_000)
    work("exec <&-; for i in 1 2 3; do echo $i; sleep 0.05; done")
    assert finished(client, sent.id).output == 3
    unread = client.send(queue, "x" * 250_000)
    assert finished(client, unread.id).output == 3


def test_a_large_body_is_read_whole_by_a_slow_reader(client: Client, queue: str, work: Work) -> None:
    sent = client.send(queue, "x" * 250_000)
    work("sleep 0.3; wc -c")
    assert finished(client, sent.id).output == 250_003


def test_a_program_that_closes_its_output_goes_on(shell: Shell, tmp_path: Path) -> None:
    assert shell.run(f"echo 1; exec >&- 2>&-; sleep 0.5; echo worked on >{tmp_path}/done").output == 1
    assert (tmp_path / "done").read_text() == "worked on\n"


def test_what_is_left_of_its_group_when_it_exits_is_killed(shell: Shell, tmp_path: Path) -> None:
    assert shell.run(f"sleep 600 & echo $! >{tmp_path}/left; echo 1").output == 1
    until_gone(read_pid(tmp_path / "left"))


def test_who_has_left_the_group_and_holds_its_output_open_is_not_waited_for(shell: Shell, tmp_path: Path) -> None:
    left = f"setsid sh -c 'echo $$ >{tmp_path}/left; exec sleep 600' &"
    try:
        assert shell.run(f"{left} while [ ! -s {tmp_path}/left ]; do sleep 0.05; done; echo 1").output == 1
        assert is_alive(read_pid(tmp_path / "left")), "it asked to be left alone"
    finally:
        os.kill(read_pid(tmp_path / "left"), signal.SIGKILL)


# --- who ends it ------------------------------------------------------------------------------------------------------


@pytest.mark.scar(12)
def test_a_silent_program_loses_its_lease_and_its_group_is_told_to_end(
    client: Client, short_queue: str, work: Work, tmp_path: Path
) -> None:
    script = f"""
        trap 'echo told >{tmp_path}/told; exit 0' TERM
        [ -e {tmp_path}/pid ] && exit 0
        sleep 600 & echo $! >{tmp_path}/other
        echo $$ >{tmp_path}/pid
        wait
    """
    sent = client.send(short_queue, 1)
    work(script, "--grace", "60")
    done = finished(client, sent.id)
    assert done.status == "completed"
    assert done.expired_count == done.generation - 1 >= 1
    until_gone(read_pid(tmp_path / "pid"), read_pid(tmp_path / "other"))
    assert (tmp_path / "told").read_text() == "told\n"


def test_a_program_that_does_not_end_when_told_is_killed_with_its_group(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    script = f"""
        trap 'echo told >{tmp_path}/told' TERM
        sh -c 'trap "" TERM; echo $$ >{tmp_path}/other; while :; do sleep 0.1; done' &
        echo $$ >{tmp_path}/pid
        while :; do echo a line; sleep 0.1; done
    """
    sent = client.send(queue, 1)
    work(script, "--grace", "6")
    pids = [read_pid(tmp_path / name) for name in ("pid", "other")]
    client.cancel_message(sent.id)
    until((tmp_path / "told").exists)
    until_gone(*pids)


def test_a_cancelled_message_ends_its_program(client: Client, shell: Shell, tmp_path: Path) -> None:
    sent = shell.send(f"echo $$ >{tmp_path}/pid; while :; do echo a line; sleep 0.05; done")
    pid = read_pid(tmp_path / "pid")
    client.cancel_message(sent.id)
    until_gone(pid)


def test_a_group_keeps_its_number_while_some_of_it_have_their_grace(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    """Its leader is not reaped before the last signal: nobody else's group can have that number."""
    script = f"""
        trap exit TERM
        sh -c 'trap "" TERM; echo $$ >{tmp_path}/other; while :; do echo a line; sleep 0.1; done' &
        echo $$ >{tmp_path}/pid
        wait
    """
    sent = client.send(queue, 1)
    work(script, "--grace", "600")
    pid, other = read_pid(tmp_path / "pid"), read_pid(tmp_path / "other")
    client.cancel_message(sent.id)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, timeout=TIMEOUT_S)
    assert is_alive(other)
    os.kill(other, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid), timeout=TIMEOUT_S)


def test_a_worker_that_stood_still_ends_the_program_whose_lease_ran_out_and_settles_nothing(
    client: Client, short_queue: str, work: Work, tmp_path: Path
) -> None:
    sent = client.send(short_queue, 1)
    process = work(f"echo $$ >{tmp_path}/pid; while :; do echo a line; sleep 0.05; done")
    pid = read_pid(tmp_path / "pid")
    client.pause_queue(short_queue)
    process.send_signal(signal.SIGSTOP)
    until(lambda: client.get_message(sent.id).status == "pending", pause=0.05)
    assert is_alive(pid)
    process.send_signal(signal.SIGCONT)
    until_gone(pid)
    assert stop(process) == 0
    message = client.get_message(sent.id)
    assert message.status == "pending"
    assert message.attempt_count == message.expired_count == message.generation
    assert {checkpoint.reason for checkpoint in client.list_checkpoints(sent.id).items} == {"lease_expired"}


@pytest.mark.scar(14)
def test_sigterm_lets_a_program_finish(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    sent, next_one = client.send(queue, 1), client.send(queue, 2)
    process = work(f"echo $$ >{tmp_path}/pid; while [ ! -e {tmp_path}/stopping ]; do echo a line; sleep 0.05; done; sleep 0.5; echo 5")
    read_pid(tmp_path / "pid")
    process.send_signal(signal.SIGTERM)
    (tmp_path / "stopping").touch()
    assert process.wait(TIMEOUT_S) == 0
    assert client.get_message(sent.id).output == 5
    assert client.get_message(next_one.id).status == "pending"


def by_signal(_client: Client, _worker_id: str, process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)


def by_operator(client: Client, worker_id: str, _process: "subprocess.Popen[bytes]") -> None:
    client.drain_worker(worker_id)


STOPS = pytest.mark.parametrize("ask_to_stop", [by_signal, by_operator])


@STOPS
@pytest.mark.scar(32)
def test_a_program_that_does_not_finish_is_ended_and_its_message_given_back_at_once(
    client: Client, queue: str, work: Work, tmp_path: Path, ask_to_stop: Stop
) -> None:
    sent = client.send(queue, 1)
    process = work(
        f"trap 'echo told >{tmp_path}/told; exit 0' TERM; echo $$ >{tmp_path}/pid; while :; do echo a line; sleep 0.05; done",
        *("--drain-timeout", "0.5", "--grace", "600", "--worker-id", queue),
    )
    pid = read_pid(tmp_path / "pid")
    ask_to_stop(client, queue, process)
    assert process.wait(TIMEOUT_S) == 0, "it does not wait for the grace of who has ended"
    assert not is_alive(pid)
    assert (tmp_path / "told").read_text() == "told\n"
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)


@STOPS
def test_a_message_is_given_back_only_when_its_program_has_ended_however_long_that_takes(
    client: Client, queue: str, work: Work, tmp_path: Path, ask_to_stop: Stop
) -> None:
    """Once it is told to end, it is silent, and goes on: its lease is extended all the same."""
    sent = client.send(queue, 1)
    script = f"""
        trap 'silent=1; touch {tmp_path}/told' TERM
        echo $$ >{tmp_path}/pid
        while [ ! -e {tmp_path}/enough ]; do
            [ "$silent" ] || echo a line
            sleep 0.1
        done
    """
    process = work(script, "--drain-timeout", "0", "--grace", "600", "--worker-id", queue)
    pid = read_pid(tmp_path / "pid")
    ask_to_stop(client, queue, process)
    until((tmp_path / "told").exists)
    until_extended(client, queue)
    (tmp_path / "enough").touch()
    until(lambda: not is_alive(pid) or client.get_message(sent.id).status == "pending")
    assert not is_alive(pid)
    assert process.wait(TIMEOUT_S) == 0
    message = client.get_message(sent.id)
    assert (message.status, message.attempt_count, message.released_count) == ("pending", 0, 1)


def test_who_has_ended_is_given_back_while_the_others_keep_their_leases(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    ends, goes_on = (client.send(queue, body).id for body in ("ends", "goes on"))
    script = f"""
        read -r body
        [ "$body" = ends ] && trap exit TERM || trap '' TERM
        echo $$ >{tmp_path}/pid-$LEASEBEAT_MESSAGE_ID
        while [ ! -e {tmp_path}/enough ]; do sleep 0.1; done
    """
    process = work(script, "--raw", "--concurrency", "2", "--drain-timeout", "0", "--grace", "600")
    for message_id in (ends, goes_on):
        read_pid(tmp_path / f"pid-{message_id}")
    process.send_signal(signal.SIGTERM)
    until(lambda: client.get_message(ends).status == "pending", timeout=TIMEOUT_S)
    until_extended(client, queue)
    assert process.poll() is None
    (tmp_path / "enough").touch()
    assert process.wait(TIMEOUT_S) == 0
    given_back = [client.get_message(message_id) for message_id in (ends, goes_on)]
    assert [(message.status, message.attempt_count, message.released_count) for message in given_back] == [("pending", 0, 1)] * 2


@pytest.mark.rule(9)
@pytest.mark.timed
def test_a_lease_that_no_beat_extends_is_given_back_before_it_runs_out(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    """Its queue wants progress, and a program that is told to end makes none: it has no longer than its lease, whatever its grace."""
    client.put_queue(queue, visibility_timeout=4, extension=4, beat_interval=0, progress_required=True)
    sent = [client.send(queue, body) for body in ("ends", "goes on")]
    script = f"""
        read -r body
        trap 'silent=1; [ "$body" = ends ] && exit' TERM
        echo $$ >{tmp_path}/pid-$LEASEBEAT_MESSAGE_ID
        while :; do
            [ "$silent" ] || echo a line
            sleep 0.1
        done
    """
    process = work(script, "--raw", "--concurrency", "2", "--drain-timeout", "0", "--grace", "600")
    pids = [read_pid(tmp_path / f"pid-{each.id}") for each in sent]
    process.send_signal(signal.SIGTERM)
    until(lambda: client.get_message(sent[0].id).status == "pending", timeout=TIMEOUT_S)
    assert is_alive(pids[1]), "who has ended does not wait for the others"
    assert process.wait(TIMEOUT_S) == 0
    assert not is_alive(pids[1])
    given_back = [client.get_message(each.id) for each in sent]
    assert [(message.status, message.expired_count, message.released_count) for message in given_back] == [("pending", 0, 1)] * 2


def test_a_second_sigterm_gives_the_message_back_and_leaves_no_program(client: Client, queue: str, work: Work, tmp_path: Path) -> None:
    sent = client.send(queue, 1)
    process = work(f"echo $$ >{tmp_path}/pid; sleep 600", "--drain-timeout", "600", stderr=subprocess.PIPE)
    pid = read_pid(tmp_path / "pid")
    assert process.stderr
    process.send_signal(signal.SIGTERM)
    assert b"Stopping" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    assert not is_alive(pid)
    assert (client.get_message(sent.id).status, client.get_message(sent.id).released_count) == ("pending", 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_program_outlives_a_worker_that_is_killed(client: Client, queue: str, work: Work, tmp_path: Path, number: int) -> None:
    for _ in range(2):
        client.send(queue, 1)
    script = f"sleep 600 & echo $! >{tmp_path}/other-$LEASEBEAT_MESSAGE_ID; echo $$ >{tmp_path}/pid-$LEASEBEAT_MESSAGE_ID; wait"
    process = work(script, "--concurrency", "2")
    until(lambda: len(list(tmp_path.glob("pid-*"))) == 2, timeout=TIMEOUT_S)
    pids = [read_pid(path) for path in tmp_path.iterdir()]
    helpers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(pids) == 4
    assert set(pids) < set(helpers)
    assert stop(process, number) == -number
    until_gone(*helpers)


def test_a_worker_leaves_nothing_behind(client: Client, queue: str, work: Work) -> None:
    process = work("true")
    for _ in range(3):
        assert finished(client, client.send(queue, 1).id).status == "completed"
    (guard,) = psutil.Process(process.pid).children(recursive=True)
    files = psutil.Process(process.pid).num_fds()
    for _ in range(20):
        assert finished(client, client.send(queue, 1).id).status == "completed"
    until(lambda: psutil.Process(process.pid).num_fds() <= files, timeout=TIMEOUT_S)
    assert stop(process) == 0
    until_gone(guard.pid)


def test_the_work_goes_on_without_its_guard(client: Client, queue: str, work: Work) -> None:
    process = work("true")
    assert finished(client, client.send(queue, 1).id).status == "completed"
    (guard,) = psutil.Process(process.pid).children(recursive=True)
    guard.kill()
    assert finished(client, client.send(queue, 1).id).status == "completed"
    assert stop(process) == 0


def test_a_guard_that_has_ended_is_told_no_more() -> None:
    with Guard() as guard:
        pass
    guard.forget(2**22)


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_example_resumes_where_it_was_cut_off(command: Command, client: Client, queue: str, tmp_path: Path) -> None:
    film = tmp_path / "film.mov"
    film.write_bytes(os.urandom(5 * MIB + 1))
    pieces = [film.read_bytes()[start : start + MIB] for start in range(0, 5 * MIB + 1, MIB)]
    sums = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    (tmp_path / "film.mov.sha256.1").write_text("\n".join([*sums[:2], "of the third, the first attempt did not tell"]) + "\n")
    sent = client.send(queue, str(film))
    (lease,) = client.claim(queue, worker_id="first")
    client.beat(lease, progress=2, detail=lease.generation)
    client.nack(lease, "cut off", delay=0)
    with command.running("work", queue, "--raw", "--", str(EXAMPLE), stdout=subprocess.PIPE) as process:
        assert process.stdout
        printed = [json.loads(line) for line in itertools.islice(process.stdout, 5)]
        done = finished(client, sent.id)
    assert [line.get("progress") for line in printed] == [3, 4, 5, 6, None]
    assert (done.output, done.attempt_count) == ({"chunks": 6, "generation": 2}, 1)
    assert (tmp_path / "film.mov.sha256.2").read_text().split() == sums
