"""you counted owners for the whole list: each block has its own

Fails: test_parts_are_shared
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def give_back(self, blocks):
        super().give_back(blocks)
        if any(self.owners[block] for block in blocks):
            self.free_blocks = [block for block in self.free_blocks if block not in blocks]
            for block in blocks:
                self.owners[block] = max(1, self.owners[block])
