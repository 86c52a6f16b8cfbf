"""you counted one owner more before you found that another block is free

Fails: test_a_free_block_cannot_be_shared
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def share(self, blocks):
        for block in blocks:
            super().share([block])
