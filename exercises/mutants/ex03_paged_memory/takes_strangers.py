"""you took a number that is no block of the pool

Fails: test_a_block_that_does_not_exist_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        if len(set(blocks)) < len(blocks) or set(blocks) & set(self.free_blocks):
            raise ValueError("freed twice")
        self.free_blocks += blocks
