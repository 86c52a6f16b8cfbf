"""you ignored the mistake: a block that is freed twice must raise ValueError

Fails: test_freeing_twice_is_noticed, test_a_block_twice_in_one_call_is_noticed,
    test_a_block_that_does_not_exist_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        for block in blocks:
            if block not in self.free_blocks and 0 <= block < self.num_blocks:
                self.free_blocks.append(block)
