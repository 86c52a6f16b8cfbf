"""Stage 2's allocator against the plainest model there is: a list that says who owns each block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibatcher.memory.contiguous import ContiguousAllocator
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams

SIZE = 4


def first_fit(owners: list[int | None], n: int) -> int | None:
    """Where first fit puts n blocks: the first place with n free neighbours."""
    places = range(len(owners) - n + 1)
    return next((p for p in places if all(owner is None for owner in owners[p : p + n])), None)


def runs(owners: list[int | None]) -> list[int]:
    """Lengths of the maximal runs of free blocks."""
    text = "".join("." if owner is None else "x" for owner in owners)
    return [len(run) for run in text.split("x") if run]


@given(
    num_blocks=st.integers(1, 24),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 99)), max_size=60),
)
def test_agrees_with_a_map_of_blocks(num_blocks, moves):
    allocator = ContiguousAllocator(num_blocks, SIZE, max_model_len=SIZE)
    owners: list[int | None] = [None] * num_blocks
    held: dict[int, list[int]] = {}
    for number, (taking, n, which) in enumerate(moves):
        if taking:
            blocks, place = allocator.take(n), first_fit(owners, n)
            assert blocks == (None if place is None else list(range(place, place + n)))
            if blocks:
                held[number] = blocks
                owners[place : place + n] = [number] * n
        elif held:
            gone = held.pop(sorted(held)[which % len(held)])
            allocator.give_back(gone)
            for block in gone:
                owners[block] = None
        free = runs(owners)
        assert allocator.free == sum(free)
        assert allocator.longest_hole == max(free, default=0)
        assert [end - start for start, end in allocator.holes] == free  # merged, sorted, nothing lost
        for n in range(1, num_blocks + 1):
            blocked = sum(free) >= n > max(free, default=0)
            assert allocator.holes_too_short(n) == (sum(free) if blocked else 0)


@pytest.mark.parametrize(
    "blocks", [[0], [3], [1, 2], [2, 3], [0, 1, 2, 3], [4, 5, 6], [5, 6, 7, 8], [-1, 0], [9, 10], [2, 4], [5, 4]]
)
def test_what_is_free_or_no_range_is_refused_and_nothing_changes(blocks):
    allocator = ContiguousAllocator(10, SIZE, max_model_len=SIZE)
    allocator.take(4)
    allocator.take(3)
    allocator.give_back([0, 1, 2, 3])  # free: 0-3 and 7-9; taken: 4-6
    if blocks == [4, 5, 6]:
        allocator.give_back(blocks)
    before = list(allocator.holes)
    with pytest.raises(ValueError, match="freed twice|no range"):
        allocator.give_back(blocks)
    assert allocator.holes == before


def request(prompt: int, max_tokens: int, output_len: int | None = None, max_model_len: int = 64) -> Request:
    made = Request([5] * prompt, SamplingParams(max_tokens=max_tokens), output_len=output_len)
    made.max_len = min(prompt + min(max_tokens, output_len or max_tokens), max_model_len)  # as Scheduler.add does
    return made


@pytest.mark.parametrize(
    ("reserve", "room"),
    [  # (prompt, max_tokens, output_len) -> tokens reserved, by hand; max_model_len is 64
        ("max", {(3, 5, None): 64, (40, 40, None): 64}),
        ("pow2", {(3, 5, None): 11, (3, 8, None): 11, (3, 9, 4): 7, (3, 1, None): 4, (40, 17, None): 64}),
        ("max_tokens", {(3, 5, None): 8, (3, 5, 2): 8, (40, 40, None): 64}),
        ("oracle", {(3, 5, None): 8, (3, 5, 2): 5, (40, 40, None): 64, (40, 40, 7): 47}),
    ],
)
def test_what_each_rule_reserves(reserve, room):
    allocator = ContiguousAllocator(100, SIZE, max_model_len=64, reserve=reserve)
    for (prompt, max_tokens, output_len), tokens in room.items():
        assert allocator.reservation(request(prompt, max_tokens, output_len)) == tokens


@pytest.mark.parametrize("reserve", ["max", "pow2", "max_tokens", "oracle"])
def test_no_rule_reserves_less_than_the_request_may_grow_to(reserve):
    allocator = ContiguousAllocator(100, SIZE, max_model_len=64, reserve=reserve)
    for prompt in range(1, 63):
        for max_tokens in (1, 2, 3, 4, 5, 8, 17, 33, 100):
            for output_len in (None, 1, 2, 5, 16, 40):
                made = request(prompt, max_tokens, output_len)
                assert made.max_len <= allocator.reservation(made) <= 64


def test_an_unknown_rule_is_refused_with_the_list():
    with pytest.raises(ValueError, match="'half'.*max, pow2, max_tokens, oracle"):
        ContiguousAllocator(10, SIZE, 64, reserve="half")


def test_the_reason_names_the_numbers():
    allocator = ContiguousAllocator(10, SIZE, max_model_len=40)
    for n in (3, 3, 4):
        allocator.take(n)
    allocator.give_back([0, 1, 2])
    allocator.give_back([6, 7, 8, 9])
    assert allocator.admit(request(20, 1), 20) == "needs 5 blocks in a row, the longest hole has 4 (7 free)"


def test_figures_by_hand():
    """10 blocks of 4 = 40 slots.

    a: blocks 0-3 (16 slots), may have 3 + 5 = 8 tokens, has computed 3 and computes 1 more.
    b: blocks 4-6 (12 slots), may have 11, has computed 11. c held 7-8 and has left, so 7-9 are free: 12 slots.
    The head needs 4 blocks: 3 are free, so no hole is to blame. With a gone too, 4 + 3 are free and 5 needed: a hole.
    """
    allocator = ContiguousAllocator(10, SIZE, max_model_len=40, reserve="oracle")
    a, b, c, head = request(3, 5), request(6, 5), request(2, 5), request(3, 13)
    for made, tokens in ((a, 16), (b, 12), (c, 8)):
        assert allocator.admit(made, tokens) is None
    a.num_computed, b.num_computed = 3, 11
    allocator.release(c)
    plan = Plan(work={a: 1}, waiting=(head, "", 0))
    assert allocator.figures([a, b], plan) == dict(used=15, total=40, reserved=4, internal=9, external=0)
    allocator.release(a)
    head.max_len = 20
    plan = Plan(waiting=(head, "", 0))
    assert allocator.figures([b], plan) == dict(used=11, total=40, reserved=0, internal=1, external=28)
