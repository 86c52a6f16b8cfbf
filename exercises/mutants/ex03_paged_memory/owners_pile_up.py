"""a block that is taken again has one owner: you went on counting from before

Fails: test_a_free_block_begins_anew
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.taken = [0] * num_blocks

    def take(self, n):
        blocks = super().take(n)
        for block in blocks or []:
            self.owners[block] += self.taken[block]
            self.taken[block] += 1
        return blocks
