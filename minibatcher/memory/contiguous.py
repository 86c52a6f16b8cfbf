"""Stage 2: every request owns one contiguous range, reserved in full when it is admitted.

That was the rule before vLLM (Orca, OSDI'22; the vLLM paper, SOSP'23, section 3.1). A range cannot grow, so it must
be long enough from the start, and the free room splits into holes. A contiguous range is a block table whose entries
happen to be consecutive, so nothing outside this file knows.

    blocks   0         4    6              12        16
             [ request a ][hole][  request b   ][  hole   ]
"""

from __future__ import annotations

from bisect import bisect
from typing import Literal, get_args

from minibatcher.memory.allocator import Allocator
from minibatcher.request import Request

Reserve = Literal["max", "pow2", "max_tokens", "oracle"]


class ContiguousAllocator(Allocator):
    """First fit over ranges of blocks.

    reserve: how long a range must be. With the vLLM paper's names, where the output's length is `output_len` if the
    request brings it, and `max_tokens` otherwise:

        max         max_model_len, whatever was asked for ("Orca (Max)")
        pow2        prompt + the output's length, rounded up to a power of two ("Orca (Pow2)")
        max_tokens  prompt + max_tokens (Orca's own rule)
        oracle      prompt + the output's length ("Orca (Oracle)")

    none of them above max_model_len.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int, reserve: Reserve = "max") -> None:
        super().__init__(num_blocks, block_size, max_model_len)
        if reserve not in get_args(Reserve):
            raise ValueError(f"reserve={reserve!r} is unknown: choose from {', '.join(get_args(Reserve))}")
        self.reserve = reserve
        # Sorted, disjoint, and never touching: neighbours are merged when a range comes back.
        self.holes: list[tuple[int, int]] = [(0, num_blocks)]  # (first block, one past the last)

    def reservation(self, request: Request) -> int:
        if self.reserve == "max":
            return self.max_model_len
        if self.reserve == "oracle":
            return request.max_len
        if self.reserve == "max_tokens":
            return super().reservation(request)
        output = request.max_len - request.num_prompt_tokens
        return min(request.num_prompt_tokens + (1 << (output - 1).bit_length()), self.max_model_len)

    def take(self, n: int) -> list[int] | None:
        for i, (start, end) in enumerate(self.holes):
            if end - start >= n:
                self.holes[i : i + 1] = [(start + n, end)] if end - start > n else []
                return list(range(start, start + n))
        return None

    def give_back(self, blocks: list[int]) -> None:
        if not blocks:
            return
        start, end = blocks[0], blocks[-1] + 1
        if blocks != list(range(start, end)) or start < 0 or end > self.num_blocks:
            raise ValueError(f"blocks {blocks} are no range of this pool of {self.num_blocks}")
        i = bisect(self.holes, (start, end))  # the range goes between holes i - 1 and i
        if (i > 0 and self.holes[i - 1][1] > start) or (i < len(self.holes) and self.holes[i][0] < end):
            raise ValueError(f"blocks {start} to {end - 1} are free already, at least in part: freed twice?")
        if i < len(self.holes) and self.holes[i][0] == end:
            end = self.holes.pop(i)[1]
        if i > 0 and self.holes[i - 1][1] == start:
            i -= 1
            start = self.holes.pop(i)[0]
        self.holes.insert(i, (start, end))

    def why_not(self, n: int) -> str:
        return f"needs {n} blocks in a row, the longest hole has {self.longest_hole} ({self.free} free)"

    @property
    def free(self) -> int:
        return sum(end - start for start, end in self.holes)

    @property
    def longest_hole(self) -> int:
        return max((end - start for start, end in self.holes), default=0)

    def holes_too_short(self, n: int) -> int:
        free = self.free
        return free if self.longest_hole < n <= free else 0
