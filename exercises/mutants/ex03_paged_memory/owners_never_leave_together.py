"""a block may be in the list twice when it has two owners or more: each of them gives it back

Fails: test_owners_may_leave_together
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def give_back(self, blocks):
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"blocks {blocks}: one of them is given back twice")
        super().give_back(blocks)
