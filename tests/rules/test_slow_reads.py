"""Reads for people that the database keeps waiting make no replica unready: workers are served all the same."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.api import Api
from harness.holding import holding, until_somebody_waits

MANY = 6
"""More reads than there are connections for them."""


@pytest.mark.rule(11)
async def test_slow_reads_make_no_replica_unready(api: Api, queue: str, shared_database: str) -> None:
    (message,) = api.send(queue, 1)
    with ThreadPoolExecutor(MANY) as pool:
        async with holding(shared_database, "lock table checkpoint in access exclusive mode") as sql:
            reads = [pool.submit(api.checkpoints, message) for _ in range(MANY)]
            await until_somebody_waits(sql, 4)
            assert api.call("GET", "/readyz")["database"] == "ok"
            assert api.beat(api.claim_one(queue)["receipt"])[0]["status"] == "extended"
        assert [read.result() for read in reads] == [[]] * MANY
