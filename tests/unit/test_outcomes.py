"""The tables of answers: every verb has a word for every fate, and OpenAPI knows the word."""

from typing import get_args

import pytest

from app.api import schemas
from app.leases import outcomes

FATES = {fate for part in get_args(outcomes.Fate) for fate in (get_args(part) or (part,))}
TABLES: dict[str, tuple[dict[outcomes.Fate, str], type[schemas.Wire]]] = {
    "beat": (outcomes.BEAT, schemas.BeatResult),
    "ack": (outcomes.ACK, schemas.AckResult),
    "nack": (outcomes.NACK, schemas.NackResult),
    "release": (outcomes.RELEASE, schemas.ReleaseResult),
}


@pytest.mark.parametrize("verb", TABLES)
def test_a_verb_answers_for_every_fate_in_a_documented_word(verb: str) -> None:
    words, result = TABLES[verb]
    assert set(words) == FATES
    assert set(words.values()) <= set(get_args(result.model_fields["status"].annotation))


@pytest.mark.rule(2)
@pytest.mark.scar(1, 2)
@pytest.mark.parametrize("verb", TABLES)
def test_no_verb_takes_a_lost_expired_or_foreign_lease_for_its_own(verb: str) -> None:
    words, _ = TABLES[verb]
    not_ours: tuple[outcomes.Fate, ...] = ("lost", "expired", "unconfirmed", "cancelled", "unknown")
    assert {fate: words[fate] for fate in not_ours} == {
        "lost": "lost",
        "expired": "expired",
        "unconfirmed": "expired",
        "cancelled": "cancelled",
        "unknown": "unknown",
    }


@pytest.mark.rule(6)
@pytest.mark.parametrize(
    ("verb", "its_own"),
    [
        ("beat", {}),
        ("ack", {"acked": "acked", "acked_late": "acked"}),
        ("nack", {"nacked": "requeued", "given_up": "failed"}),
        ("release", {"released": "released"}),
    ],
)
def test_a_repeated_verb_answers_as_at_first_and_any_other_hears_that_it_is_settled(verb: str, its_own: dict[str, str]) -> None:
    words, _ = TABLES[verb]
    for fate in ("acked", "acked_late", "nacked", "given_up", "released"):
        assert words[fate] == its_own.get(fate, "settled")


@pytest.mark.scar(1)
def test_a_report_is_kept_after_those_fates_that_made_it_too_late_and_no_others() -> None:
    assert {"lost", "expired", "unconfirmed", "cancelled"} == outcomes.REPORT_KEPT
    assert outcomes.REPORT_KEPT < FATES
