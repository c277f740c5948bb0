"""Calls about the service itself."""

from leasebeat._call import Call
from leasebeat._platform import Health, Readiness
from leasebeat._wire import build

_NOT_READY = frozenset({503})


def healthz() -> Call[Health]:
    """Ask whether the process answers."""
    return Call(method="GET", path="/healthz", parse=lambda data, _: build(Health, data))


def readyz() -> Call[Readiness]:
    """Ask whether this replica can serve. A replica that cannot is a result, not an exception."""
    return Call(method="GET", path="/readyz", accepts=_NOT_READY, parse=lambda data, _: build(Readiness, data))
