"""you took an owner away before you found that another block has none

Fails: test_one_owner_too_many_is_noticed
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def give_back(self, blocks):
        for block in blocks:
            super().give_back([block])
