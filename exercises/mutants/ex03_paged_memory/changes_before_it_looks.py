"""you freed the first blocks of the list before you found that another one is wrong

Fails: test_freeing_twice_is_noticed, test_a_block_twice_in_one_call_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def give_back(self, blocks):
        for block in blocks:
            if block in self.free_blocks or not 0 <= block < self.num_blocks:
                raise ValueError(f"block {block}")
            self.free_blocks.append(block)
