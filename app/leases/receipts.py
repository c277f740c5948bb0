"""Receipts: opaque strings that name one lease and cannot be guessed (design rule 2).

A receipt is the lease's shard, message and generation with a keyed digest over them. The key is shared by all replicas on one database,
so any of them can read what another issued, and a forged or foreign receipt costs no query.
"""

import hashlib
import hmac
import struct
from binascii import a2b_base64, b2a_base64
from typing import NamedTuple

_NAME = struct.Struct(">HQQ")
_DIGEST_BYTES = 15  # 33 bytes in all: 44 characters without padding
_CHARACTERS = 44
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class LeaseName(NamedTuple):
    """Which lease: the message, and the number of the lease among all that it ever had."""

    shard: int
    message_id: int
    generation: int


class Receipts:
    """Issues and reads receipts."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=_DIGEST_BYTES)

    def issue(self, shard: int, message_id: int, generation: int) -> str:
        name = _NAME.pack(shard, message_id, generation)
        return b2a_base64(name + self._digest(name), newline=False).translate(_TO_URL_SAFE).decode()

    def read(self, receipt: str) -> LeaseName | None:
        """Return the lease that the receipt names, or None if it was not issued on this database."""
        if len(receipt) != _CHARACTERS:  # the decoder would pass over surplus padding
            return None
        try:
            raw = a2b_base64(receipt.encode().translate(_FROM_URL_SAFE), strict_mode=True)
        except ValueError:
            return None
        name, digest = raw[: _NAME.size], raw[_NAME.size :]
        if not hmac.compare_digest(digest, self._digest(name)):
            return None
        return LeaseName._make(_NAME.unpack(name))

    def _digest(self, name: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(name)
        return keyed.digest()
