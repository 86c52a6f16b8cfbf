"""you let a free block be freed again: two requests will be given it

Fails: test_freeing_twice_is_noticed, test_a_block_twice_in_one_call_is_noticed,
    test_a_block_that_does_not_exist_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        self.free_blocks += blocks
