"""A page of large messages: what it holds is bounded, and the rest is on the next."""

from harness.api import Api

LARGE = "x" * 250_000
FIT = 8 * 1024 * 1024 // len(LARGE) + 1
"""With one more than are smaller than a page may be, it is full."""


def test_a_page_of_large_messages_ends_early_and_no_message_is_left_out(api: Api, queue: str) -> None:
    sent = [message_id for _ in range(3) for message_id in api.send(queue, *[LARGE] * 13)]
    listed: list[str] = []
    pages = []
    cursor = ""
    while cursor is not None:
        page = api.call("GET", f"/queues/{queue}/messages", params={"limit": 1000, "cursor": cursor})
        pages.append(len(page["items"]))
        listed += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert listed == sent
    assert pages == [FIT, len(sent) - FIT]
