"""Exercise 6 in another style: first count what is missing; and ageing in whole levels, looked at when asked."""

from __future__ import annotations


def make_room(request, running, waiting, free_blocks, block_size):
    missing = (len(request.token_ids) - 1) // block_size + 1 - len(request.block_table)
    while len(free_blocks) < missing:
        victim = running[-1]
        del running[-1]
        waiting[:0] = [victim]
        free_blocks.extend(victim.block_table)
        victim.block_table, victim.num_computed = [], 0
        if request not in running:
            return False
    for _ in range(missing):
        request.block_table = [*request.block_table, free_blocks.pop(0)]
    return True


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.entries = aging_s, []

    def add(self, name, priority, now):
        self.entries.append((name, priority, now))

    def pop(self, now):
        def level(entry):
            _, priority, came = entry
            return priority - (now - came) // self.aging_s, came

        if not self.entries:
            return None
        first = min(self.entries, key=level)
        self.entries.remove(first)
        return first[0]
