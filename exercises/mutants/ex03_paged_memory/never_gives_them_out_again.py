"""what came back is free: you count it, and it can never be taken again

Fails: test_what_comes_back_can_be_taken_again, test_freeing_twice_is_noticed, test_the_caller_may_keep_its_list
"""

solution = BlockAllocator


class BlockAllocator(solution):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.back = []

    @property
    def free(self):
        return len(self.free_blocks) + len(self.back)

    def take(self, n):
        return None if n > len(self.free_blocks) else [self.free_blocks.pop() for _ in range(n)]

    def give_back(self, blocks):
        if set(blocks) & {*self.free_blocks, *self.back} or len(set(blocks)) < len(blocks) or min(blocks) < 0:
            raise ValueError(blocks)
        if max(blocks) >= self.num_blocks:
            raise ValueError(blocks)
        self.back += blocks
