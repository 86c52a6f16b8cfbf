"""you handed out fewer than asked for: all or nothing

Fails: test_all_or_nothing, test_nothing_can_be_taken
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def take(self, n):
        blocks = [self.free_blocks.pop() for _ in range(min(n, self.free))]
        return blocks or None
