"""`send`, `lease` and the verbs on what it prints."""

import json
import socket
import subprocess
import sys

import pytest
from sdk.cli.command import TIMEOUT_S, Command
from sdk.running import CLAIM
from sdk.scripted_service import Answer, ScriptedService, problem

from leasebeat import Client


def test_a_message_from_send_to_ack(command: Command, client: Client, queue: str) -> None:
    (sent,) = command.json("send", queue, '{"file": "a.wav"}')
    assert sent == {"id": sent["id"], "status": "pending", "duplicate": False}
    (lease,) = command.json("lease", queue, "--worker-id", "me", "--wait", "5", "--visibility-timeout", "60")
    assert (lease["message"]["id"], lease["message"]["body"], lease["generation"]) == (sent["id"], {"file": "a.wav"}, 1)
    assert 59 < lease["expires_in"] <= 60
    assert client.get_message(sent["id"]).leased_at is not None
    (beaten,) = command.json("beat", "-", "--progress", "3", "--detail", '{"step": 1}', given=lease["receipt"] + "\n")
    assert (beaten["status"], beaten.keys()) == ("extended", {"status", "expires_at", "expires_in", "next_beat_in"})
    assert command.json("ack", "-", "--output", '{"seconds": 12.5}', given=lease["receipt"]) == [{"status": "acked", "late": False}]
    done = client.get_message(sent["id"])
    assert (done.status, done.output, done.progress, done.detail) == ("completed", {"seconds": 12.5}, 3, {"step": 1})


def test_what_a_message_may_have(command: Command, client: Client, queue: str) -> None:
    labels = ("--priority=5", "--fairness-key=a", "--work-type=w", "--task-id=t", "--max-attempts=9")
    headers = ("--header=lang=en", "--header=sum=1=1")
    (sent,) = command.json("send", queue, *labels, *headers, "--dedup-key=d", given="[1, null]")
    message = client.get_message(sent["id"])
    assert (message.body, message.headers, message.priority) == ([1, None], {"lang": "en", "sum": "1=1"}, 5)
    assert (message.fairness_key, message.work_type, message.task_id, message.max_attempts) == ("a", "w", "t", 9)
    assert command.json("send", queue, "2", "--dedup-key=d") == [{**sent, "duplicate": True}]
    (late,) = command.json("send", queue, "3", "--delay=60")
    assert late["status"] == "scheduled"
    (once,), (twice,) = (command.json("send", queue, "4", "--idempotency-key", f"{queue}-4") for _ in range(2))
    assert once["id"] == twice["id"]


def test_lines_are_messages_and_sending_them_again_with_their_key_stores_none_twice(command: Command, client: Client, queue: str) -> None:
    lines = "".join(f'{{"number": {number}}}\n' for number in range(1200)) + "\n"
    send = ("send", queue, "--lines", "--idempotency-key", queue)
    sent, again = (command.json(*send, given=lines) for _ in range(2))
    assert [each["id"] for each in sent] == [each["id"] for each in again]
    page = client.list_messages(queue, limit=1000)
    rest = client.list_messages(queue, limit=1000, cursor=page.next_cursor)
    assert [message.body["number"] for message in page.items + rest.items] == list(range(1200))


def test_lines_that_are_together_more_than_a_request_may_hold_are_sent_all_the_same(command: Command, queue: str) -> None:
    line = json.dumps("x" * 250_000)
    assert len(command.json("send", queue, "--lines", given=f"{line}\n" * 40)) == 40


def test_a_line_that_is_not_json_is_named(command: Command, queue: str) -> None:
    assert command.complaint("send", queue, "--lines", given="1\n\n{\n").startswith("Invalid value: line 3 is not JSON: Expecting")


def test_no_work_prints_nothing_and_is_no_failure(command: Command, queue: str) -> None:
    ran = command.run("lease", queue)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_several_leases_are_beaten_for_in_one_call_from_the_environment(command: Command, client: Client, queue: str) -> None:
    command.run("send", queue, "--lines", given="1\n2\n3\n")
    leases = command.json("lease", queue, "--max", "3")
    assert {lease.worker_id for lease in client.list_leases(queue=queue).items} == {socket.gethostname()}
    receipts = " ".join(lease["receipt"] for lease in leases)
    assert [each["status"] for each in command.json("beat", LEASEBEAT_RECEIPT=receipts)] == ["extended"] * 3
    assert command.json("release", LEASEBEAT_RECEIPT=leases[0]["receipt"]) == [{"status": "released"}]
    assert command.complaint("ack", "-", given=receipts) == "Invalid value: standard input must hold one receipt, not 3"


def test_a_lease_that_is_over_is_refused_with_its_word_and_without_its_receipt(command: Command, queue: str) -> None:
    command.run("send", queue, "1")
    (lease,) = command.json("lease", queue)
    command.run("ack", "-", given=lease["receipt"])
    for verb in ("beat", "nack", "release"):
        ran = command.run(verb, "-", given=lease["receipt"], expect=1)
        assert (json.loads(ran.stdout)["status"], ran.stderr) == ("settled", "leasebeat: refused: settled\n")
        assert lease["receipt"] not in ran.stdout + ran.stderr
    assert [each["status"] for each in command.json("beat", "-", given=f"{lease['receipt']} nonsense", expect=1)] == ["settled", "unknown"]


def test_a_failed_attempt_says_why_and_when_to_try_again_or_that_there_is_no_point(command: Command, client: Client, queue: str) -> None:
    (sent,) = command.json("send", queue, "1")
    (lease,) = command.json("lease", queue)
    assert command.json("nack", "-", "--error", "disk full", "--delay", "0", given=lease["receipt"]) == [{"status": "requeued"}]
    assert client.get_message(sent["id"]).error == "disk full"
    (lease,) = command.json("lease", queue)
    assert command.json("nack", "-", "--final", given=lease["receipt"]) == [{"status": "failed"}]


def test_an_output_comes_from_standard_input_too(command: Command, client: Client, queue: str) -> None:
    (sent,) = command.json("send", queue, "1")
    (lease,) = command.json("lease", queue)
    command.run("ack", lease["receipt"], "--output", "-", given=json.dumps("x" * 200_000))
    assert client.get_message(sent["id"]).output == "x" * 200_000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Missing command"),
        (("sned",), "No such command 'sned'"),
        (("send",), "Missing argument 'queue'"),
        (("send", "default", "{"), "the body is not JSON"),
        (("send", "default", "NaN"), "NaN is no JSON number"),
        (("send", "default", "[" * 100_000), "nested too deep"),
        (("send", "default", "1", "--lines"), "--lines takes no body"),
        (("send", "default", "1", "--header", "lang"), "a header is NAME=VALUE"),
        (("send", "default", "1", "--idempotency-key", "é"), "an idempotency key must be printable ASCII"),
        (("send", "no-such-queue", "1"), "404 queue-not-found"),
        (("lease", "default", "--wait", "51"), "wait: "),
        (("lease", "default", "--wait", "nan"), "not JSON compliant"),
        (("lease", "default", "--url", "service:8080"), "no http:// or https:// address"),
        (("lease", "default", "--url", "http://service:99999"), "Port out of range"),
        (("ack", "-", "--output", "-"), "standard input cannot be both"),
        (("work", "default"), "Missing argument 'command"),
        (("work", "default", "--", "no-such-program"), "there is no program 'no-such-program'"),
    ],
)
def test_wrong_usage_is_said_in_one_line(command: Command, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in command.complaint(*arguments)


@pytest.mark.parametrize("arguments", [("send", "default", "1"), ("lease", "default"), ("ack", "receipt"), ("queues",), ("top", "--once")])
def test_a_service_that_is_not_there_has_a_status_of_its_own(arguments: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    assert Command(nobody).complaint(*arguments, expect=3).startswith("no answer to ")


@pytest.mark.parametrize(
    ("answer", "status"), [(problem(429, "busy"), 3), (problem(500, "internal"), 3), (Answer([]), 3), (problem(403, ""), 2)]
)
def test_what_cannot_be_served_now_is_no_wrong_usage(answer: Answer, status: int, service: ScriptedService) -> None:
    service.on("POST", CLAIM, answer)
    Command(service.url).complaint("lease", "default", expect=status)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(("no-such-queue", "--quiet"), "404 queue-not-found"), (("default", "--concurrency", "0"), "a concurrency from 1 to 1000")],
)
def test_a_worker_that_cannot_work_says_why(command: Command, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in command.complaint("work", *arguments, "--", "true")


def test_a_reader_that_leaves_gets_no_trace(command: Command, queue: str) -> None:
    with command.running("send", queue, "1", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""


def test_its_status_is_that_of_the_process(command: Command) -> None:
    with command.running("ack", "no-receipt", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.wait(TIMEOUT_S) == 1


def test_help_and_version(command: Command) -> None:
    assert command.run("--version").stdout.strip().count(".") == 2
    assert "Exit status" in command.run("--help").stdout
    assert "secret" in command.run("ack", "--help").stdout
    assert "SIGTERM" in command.run("work", "--help").stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(command: Command, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from leasebeat.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=command.environment(), timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "leasebeat: the command line needs its extra: pip install 'leasebeat[cli]'\n"
