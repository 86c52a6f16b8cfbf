"""What every allocator does for a request: take blocks when it is admitted, give them back when it ends.

The pool is `num_blocks` blocks of `block_size` slots; a slot holds the keys and values of one token. A request's
block table lists its blocks in the order of its tokens: token p lives in slot

    block_table[p // block_size] * block_size + p % block_size

How blocks are chosen is the difference between stage 2 (a range of neighbours, `contiguous.py`) and stage 3 (any
blocks). Nobody else can tell: pool, attention and runner see a block table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from minibatcher.plan import Plan
from minibatcher.request import Request


class Allocator(ABC):
    """max_model_len: tokens that a request may have in all, and so the most that one can need."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks}, block_size={block_size}: a pool needs at least 1 of each")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len

    @abstractmethod
    def take(self, n: int) -> list[int] | None:
        """Take n blocks, or nothing at all: None when there is no room for them."""

    @abstractmethod
    def give_back(self, blocks: list[int]) -> None:
        """Free what `take` returned. Raises ValueError when one of the blocks is free already, and frees none."""

    @abstractmethod
    def why_not(self, n: int) -> str:
        """In words with numbers: why `take(n)` just returned None."""

    @property
    @abstractmethod
    def free(self) -> int:
        """Blocks that nobody owns."""

    def holes_too_short(self, n: int) -> int:
        """Free blocks that n blocks cannot use for lying apart, though together they are enough."""
        return 0

    def reservation(self, request: Request) -> int:
        """Tokens to make room for at admission, so that the request never has to ask again."""
        return min(request.num_prompt_tokens + request.params.max_tokens, self.max_model_len)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def admit(self, request: Request, tokens: int) -> str | None:
        """Give the request room for `tokens` tokens; or change nothing and return why not."""
        needed = self.blocks_for(tokens)
        blocks = self.take(needed)
        if blocks is None:
            return self.why_not(needed)
        request.block_table = blocks
        return None

    def release(self, request: Request) -> None:
        self.give_back(request.block_table)
        request.block_table = []

    def figures(self, running: Iterable[Request], plan: Plan) -> dict[str, int]:
        """Where the pool's slots are once the plan is carried out, in tokens (figure 2 of the vLLM paper, SOSP'23).

        used + reserved + internal + free = total, and external is a part of free.
        used: keys and values are there. reserved: taken, and the request may still grow into it. internal: taken,
        and can never be used (rounding, or a range for more tokens than the request may have). external: free, but in
        holes too short for the request at the head of the queue, though together they would hold it.
        """
        used = room = usable = 0
        for request in running:
            owned = len(request.block_table) * self.block_size
            room += owned
            usable += min(owned, request.max_len)
            used += request.num_computed + plan.work.get(request, 0)
        needed = self.blocks_for(self.reservation(plan.waiting[0])) if plan.waiting else 0
        return {
            "used": used,
            "total": self.num_blocks * self.block_size,
            "reserved": usable - used,
            "internal": room - usable,
            "external": self.holes_too_short(needed) * self.block_size,
        }
