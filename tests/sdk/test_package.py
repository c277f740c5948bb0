"""What holds for the package as a whole: its surface, its one door to the network, its secrets, its agreement with the service."""

import ast
import dataclasses
import inspect
import logging
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel
from sdk.running import Start
from sdk.scripted_service import Answer, ScriptedService, beats, verdicts

import leasebeat
from app.api import schemas
from leasebeat import Client, Context, LeasedMessage
from leasebeat._errors import is_refusal
from leasebeat._http import Options

SOURCES = sorted(Path(leasebeat.__file__).parent.rglob("*.py"))


def test_the_public_names_are_sorted_and_complete() -> None:
    tree = ast.parse(Path(leasebeat.__file__).read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(leasebeat.__all__) == leasebeat.__all__
    assert set(leasebeat.__all__) == imported


def test_one_module_imports_the_http_library() -> None:
    def imports(source: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse(source.read_text())))
        plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    assert [source.name for source in SOURCES if any(name.startswith("httpx") for name in imports(source))] == ["_http.py"]


@pytest.mark.scar(24)
def test_connections_are_closed_by_the_client_before_the_service_does_it() -> None:
    assert Options(base_url="http://service").for_pool["limits"].keepalive_expiry == 15


def test_no_receipt_is_ever_logged(willing: ScriptedService, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    willing.on("POST", "/beat", Answer({}, 500), beats("lost", expires_in=None, next_beat_in=None))
    willing.on("POST", "/ack", Answer({}, 500), verdicts("lost", late=False))

    def handle(_message: LeasedMessage, context: Context) -> None:
        context.beat()
        context.lost.wait(60)

    with caplog.at_level(logging.DEBUG):
        running = start(handle)
        willing.wait_for("/ack", 2)
        running.stop()
    assert "The ack of message 42 was refused: lost" in caplog.messages
    assert "secret-1" not in caplog.text


# --- the wire is the service's: each result has all of its fields, and each call can send all of its own

RESULTS = [
    (leasebeat.Queue, schemas.Queue),
    (leasebeat.Backoff, schemas.Backoff),
    (leasebeat.Bounds, schemas.Bounds),
    (leasebeat.DerivedTimes, schemas.DerivedTimes),
    (leasebeat.QueueFigures, schemas.QueueFigures),
    (leasebeat.PurgeResult, schemas.PurgeResponse),
    (leasebeat.RedriveResult, schemas.RedriveResponse),
    (leasebeat.SentMessage, schemas.SentMessage),
    (leasebeat.Message, schemas.Message),
    (leasebeat.LeasedMessage, schemas.LeasedMessage),
    (leasebeat.Checkpoint, schemas.Checkpoint),
    (leasebeat.Lease, schemas.Lease),
    (leasebeat.BeatResult, schemas.BeatResult),
    (leasebeat.AckResult, schemas.AckResult),
    (leasebeat.NackResult, schemas.NackResult),
    (leasebeat.ReleaseResult, schemas.ReleaseResult),
    (leasebeat.ActiveLease, schemas.ActiveLease),
    (leasebeat.WorkerInfo, schemas.Worker),
    (leasebeat.WorkerDetail, schemas.WorkerDetail),
    (leasebeat.Stats, schemas.Stats),
    (leasebeat.LeaseHealth, schemas.LeaseHealth),
    (leasebeat.MessageCounts, schemas.MessageCounts),
    (leasebeat.RetryCount, schemas.RetryCount),
    (leasebeat.RecoveryStats, schemas.RecoveryStats),
    (leasebeat.Recovery, schemas.Recovery),
    (leasebeat.LastScan, schemas.LastScan),
    (leasebeat.Health, schemas.Health),
    (leasebeat.Readiness, schemas.Readiness),
]
MEASURED_HERE = {"valid_until"}


@pytest.mark.parametrize(("result", "schema"), RESULTS)
def test_a_result_has_the_fields_of_the_answer(result: Any, schema: type[BaseModel]) -> None:
    assert {field.name for field in dataclasses.fields(result)} - MEASURED_HERE == set(schema.model_fields)


def test_a_claim_takes_in_the_whole_answer() -> None:
    """Its leases are compared above, `waited` moves their deadlines, and `drain` is beside them."""
    assert set(schemas.ClaimResponse.model_fields) == {"leases", "waited", "drain"}
    assert set(schemas.BeatResponse.model_fields) == {"results", "drain"}


@pytest.mark.parametrize(
    "schema",
    [
        schemas.QueueList,
        schemas.MessageList,
        schemas.CheckpointList,
        schemas.ActiveLeaseList,
        schemas.WorkerList,
    ],
)
def test_a_page_takes_in_the_whole_answer(schema: type[BaseModel]) -> None:
    assert set(schema.model_fields) <= {field.name for field in dataclasses.fields(leasebeat.Page)}


@pytest.mark.parametrize(("result", "schema"), RESULTS)
def test_a_field_may_be_none_where_the_service_may_say_null(result: Any, schema: type[BaseModel]) -> None:
    hints = get_type_hints(result)
    optional = {name for name, field in schema.model_fields.items() if NoneType in get_args(field.annotation)}
    assert optional <= {name for name in schema.model_fields if hints[name] is Any or NoneType in get_args(hints[name])}


@pytest.mark.parametrize(("kind", "schema"), [(leasebeat.Backoff, schemas.Backoff), (leasebeat.Bounds, schemas.Bounds)])
def test_the_defaults_of_a_setting_are_the_services(kind: Any, schema: type[BaseModel]) -> None:
    assert dataclasses.asdict(kind()) == schema().model_dump()


VERDICTS = [
    (leasebeat.BeatResult, schemas.BeatResult),
    (leasebeat.AckResult, schemas.AckResult),
    (leasebeat.NackResult, schemas.NackResult),
    (leasebeat.ReleaseResult, schemas.ReleaseResult),
]


@pytest.mark.parametrize(("result", "schema"), VERDICTS)
def test_every_verdict_is_a_success_or_a_refusal_or_an_error(result: type[leasebeat.Verdict], schema: type[BaseModel]) -> None:
    words = set(get_args(schema.model_fields["status"].annotation))
    refusals = {word for word in words if is_refusal(word)}
    assert words - refusals - result.successes == {"error"}
    assert len(refusals) == 5


REQUESTS = [
    (Client.put_queue, {"queue"}, schemas.QueueConfig),
    (leasebeat.Backoff, set(), schemas.Backoff),
    (leasebeat.Bounds, set(), schemas.Bounds),
    (Client.pause_queue, {"queue"}, schemas.Nothing),
    (Client.resume_queue, {"queue"}, schemas.Nothing),
    (Client.purge_queue, {"queue"}, schemas.PurgeRequest),
    (Client.redrive, {"queue"}, schemas.RedriveRequest),
    (Client.drain_worker, {"worker_id"}, schemas.DrainRequest),
    (Client.sweep, set(), schemas.Nothing),
    (Client.send, {"queue", "idempotency_key"}, schemas.NewMessage),
    (leasebeat.NewMessage, set(), schemas.NewMessage),
    (Client.claim, {"queue", "timeout"}, schemas.ClaimRequest),
    (leasebeat.Beat, {"lease"}, schemas.LeaseBeat),
    (leasebeat.Ack, {"lease"}, schemas.LeaseAck),
    (leasebeat.Nack, {"lease"}, schemas.LeaseNack),
]


@pytest.mark.parametrize(("call", "elsewhere", "schema"), REQUESTS)
def test_a_call_takes_the_fields_of_the_request(call: Any, elsewhere: set[str], schema: type[BaseModel]) -> None:
    taken = set(inspect.signature(call).parameters) - {"self"}
    assert taken - elsewhere == set(schema.model_fields) - {"receipt"}
