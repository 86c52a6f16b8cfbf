"""a block may be in the list twice: none is free when you look, and then it is freed two times

Fails: test_a_block_twice_in_one_call_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        for block in blocks:
            if block in self.free_blocks or not 0 <= block < self.num_blocks:
                raise ValueError(f"block {block}")
        self.free_blocks += blocks
