"""Which calls go past FastAPI's own layers."""

import re

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
