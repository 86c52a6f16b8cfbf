"""Stage 3, paged memory: any free block will do, so there are no holes (the vLLM paper, SOSP'23, section 4).

    request a   [ 7 | 2 | 9 ]     its tokens 0 to 15 lie in block 7, 16 to 31 in block 2, 32 to 47 in block 9
    request b   [ 0 | 4 ]
    free        [ 8 5 6 3 1 ]     a stack: the block that came back last goes out first

What is left of waste is inside the last block of a request: less than one block each.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibatcher.memory.allocator import Allocator


class BlockAllocator(Allocator):
    """Who owns which block. A block may have several owners, who only read it; it is free when the last one leaves."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(num_blocks, block_size, max_model_len)
        self.free_blocks = list(range(num_blocks))[::-1]  # block 0 goes out first
        self.ref_counts = [0] * num_blocks

    def take(self, n: int) -> list[int] | None:
        if n > len(self.free_blocks):
            return None
        blocks = [self.free_blocks.pop() for _ in range(n)]
        for block in blocks:
            self.ref_counts[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more owner for each block. Raises ValueError when one of them is free, and changes nothing."""
        for block in blocks:
            self._require_owned(block)
        for block in blocks:
            self.ref_counts[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """One owner fewer for each block; those without an owner are free."""
        freed = []
        for i, block in enumerate(blocks):
            try:
                self._require_owned(block)
            except ValueError:
                for earlier in blocks[:i]:
                    self.ref_counts[earlier] += 1
                raise
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                freed.append(block)
        self.free_blocks += reversed(freed)

    def _require_owned(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"there is no block {block}: the pool has blocks 0 to {self.num_blocks - 1}")
        if self.ref_counts[block] == 0:
            raise ValueError(f"block {block} is free already: freed twice?")

    def why_not(self, n: int) -> str:
        return f"needs {n} blocks, {self.free} free"

    @property
    def free(self) -> int:
        return len(self.free_blocks)
