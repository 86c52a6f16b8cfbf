"""Solutions to exercise 6."""

from __future__ import annotations

import heapq
from itertools import count

from minibatcher import Request


def make_room(
    request: Request, running: list[Request], waiting: list[Request], free_blocks: list[int], block_size: int
) -> bool:
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table
        victim.block_table = []
        victim.num_computed = 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True


class AgingQueue:
    """What counts is priority - waiting / aging_s. All wait alike, so the order of two never changes."""

    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self.heap: list[tuple[float, int, str]] = []
        self.number = count()

    def add(self, name: str, priority: int, now: float) -> None:
        heapq.heappush(self.heap, (priority + now / self.aging_s, next(self.number), name))

    def pop(self, now: float) -> str | None:
        return heapq.heappop(self.heap)[2] if self.heap else None
