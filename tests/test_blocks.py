"""Stage 3's allocator against a dictionary of owners, in thousands of random operations."""

from __future__ import annotations

import timeit
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minibatcher.memory.blocks import BlockAllocator
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams


class Owners(RuleBasedStateMachine):
    """`held` lists the block tables that are alive; a block's reference count is how often it stands in them."""

    @initialize(num_blocks=st.integers(1, 30))
    def begin(self, num_blocks):
        self.allocator = BlockAllocator(num_blocks, 4, max_model_len=4)
        self.held: list[list[int]] = []

    def counts(self) -> Counter:
        return Counter(block for table in self.held for block in table)

    @rule(n=st.integers(0, 12))
    def take(self, n):
        free = self.allocator.num_blocks - len(self.counts())
        blocks = self.allocator.take(n)
        if n > free:
            assert blocks is None
            assert self.allocator.why_not(n) == f"needs {n} blocks, {free} free"
        else:
            assert len(set(blocks)) == n and not set(blocks) & set(self.counts())
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), upto=st.integers(0, 12))
    def share_a_prefix(self, which, upto):
        prefix = self.held[which % len(self.held)][:upto]
        self.allocator.share(prefix)
        self.held.append(prefix)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def give_back(self, which):
        self.allocator.give_back(self.held.pop(which % len(self.held)))

    @rule(blocks=st.lists(st.integers(-2, 32), min_size=1, max_size=6))
    def give_back_or_share_what_may_not_be_there(self, blocks):
        """Refused as a whole when one is not there, or stands in the list more often than it has owners."""
        counts = self.counts()
        for call, refused in (
            (self.allocator.give_back, Counter(blocks) - counts),
            (self.allocator.share, [block for block in blocks if not counts[block]]),
        ):
            if refused:
                with pytest.raises(ValueError, match="free already|there is no block"):
                    call(blocks)

    @invariant()
    def nothing_is_lost(self):
        counts = self.counts()
        allocator = self.allocator
        assert allocator.ref_counts == [counts[block] for block in range(allocator.num_blocks)]
        assert sorted(allocator.free_blocks) == [b for b in range(allocator.num_blocks) if not counts[b]]
        assert allocator.free + len(counts) == allocator.num_blocks  # free + used == total


Owners.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestOwners = Owners.TestCase


def test_the_block_that_came_back_last_goes_out_first():
    allocator = BlockAllocator(6, 4, max_model_len=24)
    assert allocator.take(4) == [0, 1, 2, 3]
    allocator.give_back([1, 2])
    assert allocator.take(3) == [1, 2, 4]


@pytest.mark.parametrize("tokens", range(1, 40))
def test_a_request_wastes_less_than_a_block(tokens):
    allocator = BlockAllocator(40, 4, max_model_len=64)
    request = Request([5] * tokens, SamplingParams(max_tokens=1))
    request.max_len = tokens
    assert allocator.admit(request, tokens) is None
    request.num_computed = tokens
    figures = allocator.figures([request], Plan(waiting=(request, "", 0)))
    assert figures["internal"] == -tokens % 4 and figures["reserved"] == figures["external"] == 0
    allocator.release(request)
    assert allocator.free == 40 and request.block_table == []


def test_taking_and_giving_back_cost_the_same_in_a_large_pool():
    """O(1) a block: a hundred times the pool may not cost ten times as much. (A scan of the pool would cost 100.)"""

    def cost(num_blocks: int) -> float:
        allocator = BlockAllocator(num_blocks, 16, max_model_len=16)
        allocator.take(num_blocks // 2)
        return min(timeit.repeat(lambda: allocator.give_back(allocator.take(8)), number=200, repeat=7))

    assert cost(100_000) < 10 * cost(1_000)
