"""who takes no blocks gets an empty list: None says that there were too few

Fails: test_nothing_can_be_taken
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def take(self, n):
        return super().take(n) or None
