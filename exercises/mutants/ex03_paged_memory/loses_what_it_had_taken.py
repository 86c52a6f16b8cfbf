"""you took some before you saw that there are too few, and they are lost

Fails: test_all_or_nothing
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def take(self, n):
        blocks = []
        for _ in range(n):
            if not self.free_blocks:
                return None
            blocks.append(self.free_blocks.pop())
        return blocks
