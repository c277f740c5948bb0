"""Receipts: opaque, and worth nothing when forged."""

import base64
import binascii

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.leases.receipts import LeaseName, Receipts

KEY = bytes(range(32))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

shards = st.integers(0, 2**16 - 1)
ids = st.integers(0, 2**64 - 1)


@given(shards, ids, ids)
def test_a_receipt_reads_back_as_the_lease_that_it_was_issued_for(shard: int, message_id: int, generation: int) -> None:
    receipts = Receipts(KEY)
    assert receipts.read(receipts.issue(shard, message_id, generation)) == LeaseName(shard, message_id, generation)


@given(shards, ids, ids)
def test_a_receipt_is_44_characters_that_need_no_escaping(shard: int, message_id: int, generation: int) -> None:
    receipt = Receipts(KEY).issue(shard, message_id, generation)
    assert len(receipt) == 44
    assert set(receipt) <= set(ALPHABET)


def test_replicas_with_one_key_read_each_others_receipts() -> None:
    assert Receipts(KEY).read(Receipts(bytes(KEY)).issue(0, 42, 7)) == LeaseName(0, 42, 7)


@pytest.mark.scar(5)
@pytest.mark.rule(2)
def test_a_receipt_of_a_foreign_key_is_refused() -> None:
    foreign = bytes(32)
    assert Receipts(KEY).read(Receipts(foreign).issue(0, 42, 7)) is None


@pytest.mark.scar(5)
@pytest.mark.rule(2)
@pytest.mark.parametrize("position", range(33))
def test_a_receipt_with_any_byte_changed_is_refused(position: int) -> None:
    receipts = Receipts(KEY)
    raw = bytearray(base64.urlsafe_b64decode(receipts.issue(3, 2**40, 9)))
    for bit in range(8):
        tampered = raw.copy()
        tampered[position] ^= 1 << bit
        assert receipts.read(base64.urlsafe_b64encode(tampered).decode()) is None


@pytest.mark.rule(2)
@pytest.mark.parametrize("position", range(44))
def test_a_receipt_with_any_character_changed_is_refused(position: int) -> None:
    receipts = Receipts(KEY)
    receipt = receipts.issue(0, 42, 1)
    for character in ALPHABET:
        if character != receipt[position]:
            assert receipts.read(receipt[:position] + character + receipt[position + 1 :]) is None


@pytest.mark.rule(2)
def test_a_receipt_cut_short_or_drawn_out_is_refused() -> None:
    receipts = Receipts(KEY)
    receipt = receipts.issue(0, 42, 1)
    for cut in range(len(receipt)):
        assert receipts.read(receipt[:cut]) is None
    for more in ("A", "AAAA", "====", "\n", " ", "\0", receipt):
        assert receipts.read(receipt + more) is None
        assert receipts.read(more + receipt) is None


@pytest.mark.parametrize(
    "text", ["", "=", "====", "\xe9", "\0", "\uff41" * 44, "\ud800", "A" * 44, "A" * 24, "+/" * 22, " " * 44, "x" * 100_000]
)
def test_text_that_is_no_receipt_is_refused(text: str) -> None:
    assert Receipts(KEY).read(text) is None


@given(st.text(max_size=60))
def test_no_text_raises_or_passes_for_a_receipt(text: str) -> None:
    assert Receipts(KEY).read(text) is None


@settings(max_examples=300)
@given(st.binary(min_size=33, max_size=33))
def test_random_bytes_of_the_right_length_are_refused(raw: bytes) -> None:
    assert Receipts(KEY).read(binascii.b2a_base64(raw, newline=False).decode().replace("+", "-").replace("/", "_")) is None


@given(shards, ids, ids)
def test_leases_of_one_message_have_receipts_without_a_pattern(shard: int, message_id: int, generation: int) -> None:
    receipts = Receipts(KEY)
    first, second = (base64.urlsafe_b64decode(receipts.issue(shard, message_id, each)) for each in (generation, generation ^ 1))
    assert first[18:] != second[18:]
