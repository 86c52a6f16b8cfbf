"""Exercise 3 in another style: sets and counters, first in first out, and the standard library."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from itertools import groupby
from math import ceil


def slot_mapping(block_table, start, end, block_size):
    slots = [block * block_size + offset for block in block_table for offset in range(block_size)]
    return slots[start:end]


class BlockAllocator:
    def __init__(self, num_blocks):
        self.queue, self.taken = deque(range(num_blocks)), set()

    @property
    def free(self):
        return len(self.queue)

    def take(self, n):
        if len(self.queue) < n:
            return None
        blocks = tuple(self.queue.popleft() for _ in range(n))
        self.taken.update(blocks)
        return blocks

    def give_back(self, blocks):
        returned = set(blocks)
        if len(returned) != len(blocks) or not returned <= self.taken:
            raise ValueError(f"not all of {blocks} are taken")
        self.taken -= returned
        self.queue.extend(blocks)


class SharedBlockAllocator:
    def __init__(self, num_blocks):
        self.heap, self.owners = list(range(num_blocks)), Counter()

    @property
    def free(self):
        return len(self.heap)

    def take(self, n):
        if len(self.heap) < n:
            return None
        blocks = [heapq.heappop(self.heap) for _ in range(n)]
        self.owners.update(blocks)
        return blocks

    def share(self, blocks):
        if not all(self.owners[block] for block in blocks):
            raise ValueError("a free block cannot be shared")
        self.owners += Counter(blocks)

    def give_back(self, blocks):
        left = self.owners.copy()
        left.subtract(blocks)
        if min(left.values(), default=0) < 0:
            raise ValueError("given back too often")
        for block in set(blocks):
            if not left[block]:
                heapq.heappush(self.heap, block)
        self.owners = left


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining, queue = {}, list(reversed(waiting))
    while queue:
        head = queue.pop()
        needed = ceil(min(max_model_len, head.num_prompt_tokens + head.params.max_tokens) / block_size)
        if needed > free_blocks - sum(joining.values()):
            return joining, f"{free_blocks - sum(joining.values())} blocks are free, and it takes {needed}"
        if len(joining) >= free_lanes:
            return joining, f"all lanes are taken ({free_lanes} were free)"
        joining[head] = needed
    return joining, None


def waste(owners, lengths, block_size, needed):
    blocks = Counter(owners)
    internal = sum(blocks[name] * block_size - length for name, length in lengths.items())
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]
    fits = any(hole >= needed for hole in holes)
    return internal, 0 if fits or sum(holes) < needed else sum(holes) * block_size
