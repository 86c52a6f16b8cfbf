"""you let a block have fewer owners than none: raise ValueError

Fails: test_one_owner_too_many_is_noticed
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def give_back(self, blocks):
        self.look_up(blocks)
        for block in blocks:
            self.owners[block] -= 1
            if self.owners[block] == 0:
                self.free_blocks.append(block)
