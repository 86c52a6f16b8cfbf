"""you handed a block out twice: what is taken is not free any more

Fails: test_every_block_is_handed_out_once, test_freeing_twice_is_noticed, test_a_block_twice_in_one_call_is_noticed,
    test_a_block_that_does_not_exist_is_noticed
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.count = num_blocks

    @property
    def free(self):
        return self.count

    def take(self, n):
        if n > self.count:
            return None
        self.count -= n
        return list(range(n))

    def give_back(self, blocks):
        self.count += len(blocks)
