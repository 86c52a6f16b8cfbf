"""a free block has nothing in it to share: raise ValueError

Fails: test_a_free_block_cannot_be_shared
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def share(self, blocks):
        self.look_up(blocks)
        for block in blocks:
            self.owners[block] += 1
