"""The alarm that a replica's timer sleeps by: set to the next due moment, and put forward when an earlier one appears."""

import asyncio


class Alarm:
    """Durations are in seconds, on the event loop's monotonic clock."""

    def __init__(self) -> None:
        self._rings_at = float("inf")
        self._put_forward = asyncio.Event()

    def set(self, delay: float) -> None:
        """Ring in `delay` seconds, unless it rings earlier anyway."""
        rings_at = asyncio.get_running_loop().time() + delay
        if rings_at < self._rings_at:
            self._rings_at = rings_at
            self._put_forward.set()

    async def sleep(self, longest: float) -> bool:
        """Sleep until the alarm rings, `longest` seconds at most. It is then unset. Returns whether it rang."""
        loop = asyncio.get_running_loop()
        end = loop.time() + longest
        while (remaining := min(end, self._rings_at) - loop.time()) > 0:
            self._put_forward.clear()
            try:
                await asyncio.wait_for(self._put_forward.wait(), remaining)
            except TimeoutError:
                break
        rang = self._rings_at < end
        self._rings_at = float("inf")
        return rang
