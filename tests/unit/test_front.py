"""Which calls go past FastAPI's own layers, and which it finds first."""

import re
from itertools import takewhile

import pytest
from starlette.routing import Match

from app.api.hot import HotRoute
from app.main import create_app
from app.settings import Settings


def test_every_hot_call_goes_past_fastapi_and_no_other() -> None:
    front = create_app(Settings(), "postgresql://nowhere/none")
    paths = {path for route in front.app.routes if (path := getattr(route, "path", ""))}
    hot = {route.path for route in front.app.routes if isinstance(route, HotRoute)}
    assert hot == {"/beat", "/ack", "/nack", "/release", "/queues/{queue}/messages", "/queues/{queue}/leases"}
    assert paths > hot
    for path in paths:
        scope = {"type": "http", "method": "POST", "path": re.sub(r"{[^}]+}", "x", path)}
        assert front.finds(scope) == (path in hot), path
        if path in hot:
            assert scope["route"].path == path  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_what_platforms_ask_all_the_time_is_found_before_all_else(path: str) -> None:
    routes = create_app(Settings(), "postgresql://nowhere/none").app.routes
    scope = {"type": "http", "method": "GET", "path": path}
    tried = takewhile(lambda route: route.matches(scope)[0] is Match.NONE, routes)
    assert [getattr(route, "path", None) for route in tried] == ["/openapi.json"]
