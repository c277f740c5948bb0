"""Notifications that a replica cannot read, as those of a later version may be, disturb nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness.operating import RARELY, parked_on
from harness.postgres import execute
from harness.server import Server
from harness.wait import until

FOREIGN = ("", "news", "7", "[]", '{"version": 2}', '["replica", 5]', '["replica", [1, [2]]]')


def test_a_notification_that_cannot_be_read_is_passed_over(start_server: Callable[..., Server], database_url: str) -> None:
    here, there = (start_server(sweep_interval=RARELY) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(here.api.claim_one, "default", wait=40)
        until(lambda: parked_on(here) == 1)
        for payload in FOREIGN:
            execute(database_url, "select pg_notify('leasebeat_ready', $1)", payload)
        there.api.send("default", 1)
        assert parked.result()["message"]["body"] == 1
    assert "Traceback" not in here.log
