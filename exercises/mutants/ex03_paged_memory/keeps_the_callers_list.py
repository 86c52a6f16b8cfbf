"""you kept the caller's own list: what happens to it later happens to your free blocks

Fails: test_the_caller_may_keep_its_list
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        before = list(self.free_blocks)
        super().give_back(blocks)
        self.parts = [before, blocks]

    @property
    def free(self):
        return sum(map(len, self.parts)) if hasattr(self, "parts") else len(self.free_blocks)

    def take(self, n):
        if hasattr(self, "parts"):
            self.free_blocks = [block for part in self.parts for block in part]
            del self.parts
        return super().take(n)
