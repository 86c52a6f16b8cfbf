"""you noted that a block is shared, and not by how many

Fails: test_the_last_owner_frees_a_block, test_owners_may_leave_together
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def share(self, blocks):
        super().share(blocks)
        for block in blocks:
            self.owners[block] = 2
