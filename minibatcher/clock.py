"""One clock for everything that waits or is timed: the run, the batch that fills, and later deadlines and turns."""

from __future__ import annotations

import time


class Clock:
    """Seconds since its creation. A simulator puts a clock of its own in its place, with the same three names."""

    kind = "wall"

    def __init__(self) -> None:
        self._zero = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._zero

    def wait_until(self, t: float) -> None:
        while (left := t - self.now()) > 0:
            time.sleep(left)
