"""A queue with weights for thousands of keys: a claim reads them once, not for each key that it visits."""

import asyncpg
import pytest
from harness.plans import CLAIM_KINDS, buffers, explain, fill

from app.leases.floors import Floors
from app.store.claim import CLAIMS
from app.store.database import HOT_SESSION

KEYS = 100
PAGES_OF_A_KEY = 22
"""At most so many are looked at to find a key and to grant its message: 19 to 21, as a lookup by `shard_key` comes to its last page twice.
The weights fill more."""

MANY = "update queue set weights = (select json_object_agg(md5(n::text), 1 + n % 7) from generate_series(1, 10000) n)"


@pytest.mark.parametrize("kind", CLAIM_KINDS)
async def test_a_claim_reads_weights_once_however_many_keys_it_visits(database_url: str, kind: str) -> None:
    sql = await asyncpg.connect(database_url, server_settings=HOT_SESSION)
    await fill(sql, ready=KEYS, keys=KEYS)
    pick, wanted = CLAIM_KINDS[kind]
    nothing = [None] * KEYS
    arguments = (*(0, 1, "", 0, False, [], ["worker"] * KEYS, *Floors().stretches()), *(*wanted, *[nothing] * 3, list(range(KEYS))))
    await sql.execute(MANY)
    await explain(sql, CLAIMS[pick], *arguments)  # the first to read what was just stored looks at more
    assert buffers(await explain(sql, CLAIMS[pick], *arguments)) < PAGES_OF_A_KEY * KEYS
    await sql.close()
