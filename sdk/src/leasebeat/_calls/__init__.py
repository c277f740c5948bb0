"""Every call of the service, as a function that makes a `Call`.

These functions are the methods of `Client` and `AsyncClient`: their signatures and descriptions are the public ones.
"""

from leasebeat._calls import figures, leases, messages, platform, queues, registry

__all__ = ["figures", "leases", "messages", "platform", "queues", "registry"]
