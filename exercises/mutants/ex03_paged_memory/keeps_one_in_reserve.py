"""exactly enough is enough: the last block can be taken too

Fails: test_every_block_is_handed_out_once, test_all_or_nothing, test_nothing_can_be_taken,
    test_what_comes_back_can_be_taken_again, test_freeing_twice_is_noticed,
    test_a_block_that_does_not_exist_is_noticed, test_the_caller_may_keep_its_list
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def take(self, n):
        return None if n >= self.free else super().take(n)
