"""a block that does not exist cannot be shared: raise ValueError. (owners[-1] is the last block of the pool)

Fails: test_a_block_that_does_not_exist_has_no_owners
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def look_up(self, blocks):
        pass
