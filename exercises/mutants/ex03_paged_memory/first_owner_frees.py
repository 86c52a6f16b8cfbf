"""you freed the block when the first owner left: the others still read it

Fails: test_the_last_owner_frees_a_block, test_one_owner_too_many_is_noticed, test_parts_are_shared,
    test_owners_may_leave_together
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def give_back(self, blocks):
        self.look_up(blocks)
        for block in blocks:
            if self.owners[block] < 1:
                raise ValueError(f"block {block}")
        for block in blocks:
            self.owners[block] -= 1
            if block not in self.free_blocks:
                self.free_blocks.append(block)
