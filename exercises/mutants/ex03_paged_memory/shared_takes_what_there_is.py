"""you handed out fewer than asked for: all or nothing

Fails: test_it_is_an_allocator
"""

solution = SharedBlockAllocator


class SharedBlockAllocator(solution):
    def take(self, n):
        return super().take(min(n, self.free))
