"""The front door: hot calls go straight to their routes, all others to FastAPI; HEAD is served as GET.

What FastAPI and Starlette put around every route costs a call more than a beat does, and a hot route needs none of it but an answer to
what goes wrong. FastAPI has these routes all the same: they are in OpenAPI, and it says what is wrong with any other method.
"""

from collections.abc import Awaitable

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.hot import HotRoute
from app.middleware import RequestIds
from app.telemetry import Telemetry


class Front:
    """The application as it is served."""

    def __init__(self, app: FastAPI, telemetry: Telemetry) -> None:
        self.app = app
        hot = [route for route in app.routes if isinstance(route, HotRoute)]
        self._fixed = {route.path: route for route in hot if not route.param_convertors}
        self._by_end = {_end(route.path): route for route in hot if route.param_convertors}
        self._hot: ASGIApp = RequestIds(telemetry.traced(ExceptionMiddleware(_serve, app.exception_handlers)))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] == "POST" and self.finds(scope):
            return self._hot(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server, which has the scope as it was, leaves the body out
        return self.app(scope, receive, send)

    def finds(self, scope: Scope) -> bool:
        """Find the hot route of a call, and note what a router notes."""
        path = scope["path"]
        route = self._fixed.get(path) or self._by_end.get(_end(path))
        match = route.path_regex.match(path) if route else None
        if match is None:
            return False
        scope["app"], scope["route"], scope["path_params"] = self.app, route, match.groupdict()
        return True


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    await scope["route"].app(scope, receive, send)


def _end(path: str) -> str:
    return path[path.rfind("/") :]
