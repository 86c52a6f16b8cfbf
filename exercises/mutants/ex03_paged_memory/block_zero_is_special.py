"""you left block 0 out: it is a block like any other

Fails: test_every_block_is_handed_out_once, test_all_or_nothing, test_nothing_can_be_taken,
    test_what_comes_back_can_be_taken_again, test_freeing_twice_is_noticed,
    test_a_block_that_does_not_exist_is_noticed, test_the_caller_may_keep_its_list
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.free_blocks.remove(0)
