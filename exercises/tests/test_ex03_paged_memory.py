"""Checks of exercise 3."""

import random
import re

from minibatcher import Request, SamplingParams
from minibatcher.grading import Wrong, exercise, expect, expect_error, expect_timeline, part, show
from minibatcher.grading.toys import answers, engine, lanes, request
from minibatcher.memory.allocator import Allocator
from minibatcher.plan import Plan
from minibatcher.schedulers.iteration import IterationScheduler


@exercise("3.1", points=2, minutes=10)
class TestSlotMapping:
    """The slots of a request's tokens"""

    def test_the_block_table_leads_to_the_block(self, ex):
        """the tokens of the second block of a request lie in the block that its table names second"""
        expect(ex.slot_mapping([5, 0, 3], start=0, end=12, block_size=4), [20, 21, 22, 23, 0, 1, 2, 3, 12, 13, 14, 15])

    def test_one_token(self, ex):
        """a decode asks for one token, which may be the first or the last of a block"""
        for position, slot in {3: 23, 4: 0, 7: 3, 8: 12}.items():
            expect(ex.slot_mapping([5, 0, 3], position, position + 1, 4), [slot])

    def test_a_chunk_may_begin_and_end_anywhere(self, ex):
        """a part of a prompt begins and ends in the middle of a block"""
        expect(ex.slot_mapping([2, 9, 4, 1], start=4, end=8, block_size=3), [28, 29, 12, 13])

    def test_other_block_sizes(self, ex):
        """blocks may have any size, even 1"""
        for size, slots in {1: [2, 8], 2: [13, 4], 16: [97, 98]}.items():
            expect(ex.slot_mapping([6, 2, 8], 1, 3, size), slots)


def unchanged(allocator, call, *arguments):
    """The call raises ValueError, and as many blocks are free as before."""
    before = allocator.free
    expect_error(ValueError, call, *arguments)
    expect(allocator.free, before, "after the error as many blocks are free as before")


def taken(allocator, n):
    """n blocks, where n are free."""
    blocks = allocator.take(n)
    if not isinstance(blocks, (list, tuple)) or len(blocks) != n:
        raise Wrong(f"there are {n} blocks to be taken", got=show(blocks))
    return list(blocks)


@exercise("3.2", points=3, minutes=30)
class TestBlockAllocator:
    """A block allocator"""

    def test_every_block_is_handed_out_once(self, ex):
        """a block that somebody has is not given to anybody else, and all blocks are used, block 0 too"""
        allocator = ex.BlockAllocator(6)
        got = [*taken(allocator, 2), *taken(allocator, 1), *taken(allocator, 3)]
        expect(sorted(got), range(6))

    def test_all_or_nothing(self, ex):
        """if there are too few, None comes back and nothing is taken; exactly enough is enough"""
        allocator = ex.BlockAllocator(4)
        allocator.take(2)
        expect(allocator.take(3), None)
        expect(allocator.free, 2, "free after a `take` that got nothing")
        taken(allocator, 2)
        expect([allocator.take(1), allocator.free], [None, 0])

    def test_nothing_can_be_taken(self, ex):
        """who takes no blocks gets an empty list, even when none is free"""
        allocator = ex.BlockAllocator(1)
        expect([allocator.take(0), len(taken(allocator, 1)), allocator.take(0)], [[], 1, []])

    def test_what_comes_back_can_be_taken_again(self, ex):
        """a block that was given back is as good as new"""
        allocator = ex.BlockAllocator(3)
        first, second = taken(allocator, 1), taken(allocator, 2)
        allocator.give_back(second)
        expect([allocator.free, sorted(taken(allocator, 2)), allocator.free], [2, sorted(second), 0])
        allocator.give_back(first)
        expect(allocator.take(1), first)

    def test_freeing_twice_is_noticed(self, ex):
        """giving back a free block raises ValueError, and changes nothing"""
        allocator = ex.BlockAllocator(4)
        a, b = taken(allocator, 2), taken(allocator, 1)
        allocator.give_back(a)
        unchanged(allocator, allocator.give_back, a)
        unchanged(allocator, allocator.give_back, [*b, a[0]])
        expect(len({*b, *taken(allocator, 3)}), 4, "different blocks that are taken after it")

    def test_a_block_twice_in_one_call_is_noticed(self, ex):
        """a list with the same block twice raises ValueError, and changes nothing"""
        allocator = ex.BlockAllocator(3)
        (block,) = taken(allocator, 1)
        unchanged(allocator, allocator.give_back, [block, block])

    def test_a_block_that_does_not_exist_is_noticed(self, ex):
        """a number that is no block of the pool raises ValueError, and changes nothing"""
        allocator = ex.BlockAllocator(3)
        taken(allocator, 3)
        for stranger in (3, -1):
            unchanged(allocator, allocator.give_back, [stranger])

    def test_the_caller_may_keep_its_list(self, ex):
        """what a request does to its block table later does not change the allocator"""
        allocator = ex.BlockAllocator(4)
        mine = taken(allocator, 2)
        given = list(mine)
        allocator.give_back(given)
        given.clear()
        expect([allocator.free, len(set(taken(allocator, 4)))], [4, 4])


@exercise("3.3", points=2, minutes=20)
class TestReferenceCounts:
    """Blocks with several owners"""

    def test_the_last_owner_frees_a_block(self, ex):
        """a block with three owners is free when the third has given it back"""
        allocator = ex.SharedBlockAllocator(2)
        blocks = taken(allocator, 1)
        allocator.share(blocks)
        allocator.share(blocks)
        free = []
        for _ in range(3):
            allocator.give_back(blocks)
            free.append(allocator.free)
        expect(free, [1, 1, 2], "free after each owner that left")

    def test_a_free_block_begins_anew(self, ex):
        """a block that is taken again has one owner, whatever it had before"""
        allocator = ex.SharedBlockAllocator(1)
        for _ in range(2):
            blocks = taken(allocator, 1)
            allocator.share(blocks)
            allocator.give_back(blocks)
            allocator.give_back(blocks)
        allocator.give_back(taken(allocator, 1))
        expect(allocator.free, 1)

    def test_a_free_block_cannot_be_shared(self, ex):
        """sharing a free block raises ValueError, and changes no other block of the call"""
        allocator = ex.SharedBlockAllocator(3)
        mine, other = taken(allocator, 1), taken(allocator, 1)
        allocator.give_back(other)
        unchanged(allocator, allocator.share, other)
        unchanged(allocator, allocator.share, [*mine, *other])
        allocator.give_back(mine)
        expect(allocator.free, 3, "free after the one owner has given its block back")

    def test_one_owner_too_many_is_noticed(self, ex):
        """giving back more often than there are owners raises ValueError, and changes nothing"""
        allocator = ex.SharedBlockAllocator(3)
        mine, other = taken(allocator, 1), taken(allocator, 1)
        allocator.share(other)
        unchanged(allocator, allocator.give_back, [*other, *mine, *mine])
        allocator.give_back(other)
        expect(allocator.free, 1, "free while `other` has one owner left")
        allocator.give_back(other)
        unchanged(allocator, allocator.give_back, other)

    def test_owners_may_leave_together(self, ex):
        """a block that is in the list twice has two owners more, or two less"""
        allocator = ex.SharedBlockAllocator(2)
        (block,) = taken(allocator, 1)
        allocator.share([block, block])
        allocator.give_back([block, block])
        expect(allocator.free, 1, "free while the block has one owner of three left")
        allocator.share([block])
        allocator.give_back([block, block])
        expect(allocator.free, 2, "free when both owners have left together")

    def test_a_block_that_does_not_exist_has_no_owners(self, ex):
        """sharing or giving back a number that is no block of the pool raises ValueError, and changes nothing"""
        allocator = ex.SharedBlockAllocator(3)
        taken(allocator, 3)
        for stranger in (-1, 99):
            unchanged(allocator, allocator.share, [stranger])
            unchanged(allocator, allocator.give_back, [stranger])

    def test_parts_are_shared(self, ex):
        """a request that shares the beginning of another's blocks leaves the rest alone"""
        allocator = ex.SharedBlockAllocator(5)
        first = taken(allocator, 3)
        allocator.share(first[:2])
        second = [*first[:2], *taken(allocator, 1)]
        free = [allocator.free]
        for blocks in (first, second):
            allocator.give_back(blocks)
            free.append(allocator.free)
        expect(free, [1, 2, 5], "free blocks at first, and after each of the two has left")

    def test_it_is_an_allocator(self, ex):
        """all or nothing, every block once, as in 3.2"""
        allocator = ex.SharedBlockAllocator(3)
        blocks = taken(allocator, 2)
        expect([allocator.take(2), allocator.free], [None, 1])
        expect(sorted([*blocks, *taken(allocator, 1)]), range(3))


def make(name, prompt, max_tokens):
    return Request([7] * prompt, SamplingParams(max_tokens=max_tokens), name)


def named(got):
    return [(one.request_id, blocks) for one, blocks in part(got, 0, of=2).items()]


def numbers(got):
    """The numbers in the reason, in any order."""
    return sorted(map(int, re.findall(r"\d+", str(part(got, 1, of=2)))))


@exercise("3.4", points=3, minutes=25)
class TestAdmission:
    """Admission by blocks"""

    def test_blocks_for_prompt_and_output(self, ex):
        """prompt and max_tokens together, rounded up to whole blocks"""
        waiting = [make("a", 5, 2), make("b", 5, 3), make("c", 5, 4), make("d", 1, 1)]
        got = ex.admit(waiting, free_lanes=9, free_blocks=99, block_size=4, max_model_len=100)
        expect([named(got), part(got, 1, of=2)], [[("a", 2), ("b", 2), ("c", 3), ("d", 1)], None])

    def test_no_more_than_the_longest(self, ex):
        """a request is cut off at max_model_len tokens, so it reserves no more"""
        got = ex.admit([make("a", 5, 90)], free_lanes=1, free_blocks=8, block_size=4, max_model_len=30)
        expect([named(got), part(got, 1, of=2)], [[("a", 8)], None])

    def test_blocks_are_spent_as_they_join(self, ex):
        """what one reserves is not there for the next; exactly enough is enough"""
        waiting = [make("a", 4, 4), make("b", 8, 4), make("c", 1, 1)]
        a, b, c = ("a", 2), ("b", 3), ("c", 1)
        for blocks, joining in {6: [a, b, c], 5: [a, b], 2: [a], 1: []}.items():
            expect(named(ex.admit(waiting, 9, blocks, 4, 100)), joining, "who joins, with how many blocks")

    def test_nobody_overtakes_for_blocks(self, ex):
        """if the first that waits does not fit, nobody behind it joins"""
        got = ex.admit([make("a", 40, 4), make("b", 1, 1)], 9, 5, 4, 100)
        expect(named(got), [])

    def test_it_says_which_blocks_are_missing(self, ex):
        """the reason has two numbers: what the first that waits needs, and what is free when its turn comes"""
        waiting = [make("a", 4, 4), make("b", 20, 4), make("c", 1, 1)]
        got = ex.admit(waiting, 9, 5, 4, 100)
        expect(numbers(got), [3, 6], f'the numbers in "{part(got, 1, of=2)}"')

    def test_it_says_that_a_lane_is_missing(self, ex):
        """no more join than lanes are free, and the reason has the word "lane" in it"""
        waiting = [make("a", 4, 4), make("b", 4, 4), make("c", 4, 4)]
        got = ex.admit(waiting, 2, 99, 4, 100)
        expect([named(got), "lane" in str(part(got, 1, of=2))], [[("a", 2), ("b", 2)], True])

    def test_the_blocks_in_the_engine(self, ex):
        """in the real engine, with 8 blocks of 4 tokens, the schedule is as by hand"""
        requests = [request("a", 5, 3), request("b", 9, 5), request("c", 8, 8), request("d", 2, 2, 1)]
        expect_timeline(lanes(serve(ex, requests), 3), ["AaaCccccccc", "BbbbbDd....", "..........."])


class Adapter(Allocator):
    """The package's interface around the learner's allocator."""

    def __init__(self, learners, num_blocks, block_size):
        super().__init__(num_blocks, block_size, num_blocks * block_size)
        self.learners = learners

    def take(self, n):
        blocks = self.learners.take(n)
        return None if blocks is None else list(blocks)

    def give_back(self, blocks):
        self.learners.give_back(blocks)

    def why_not(self, n):
        return f"needs {n} blocks, {self.free} free"

    @property
    def free(self):
        return self.learners.free


class Shelf:
    """For checks of 3.4, which must not depend on 3.2."""

    def __init__(self, num_blocks):
        self.blocks = list(range(num_blocks))

    @property
    def free(self):
        return len(self.blocks)

    def take(self, n):
        taken, self.blocks = self.blocks[:n], self.blocks[n:]
        return taken

    def give_back(self, blocks):
        self.blocks += blocks


class AdmitScheduler(IterationScheduler):
    """The package's stage 3; admission is the learner's."""

    def __init__(self, ex, **shared):
        super().__init__(**shared)
        self.ex = ex

    def schedule(self):
        plan, pool = Plan(), self.allocator
        got = self.ex.admit(self.waiting, len(self.free_lanes), pool.free, pool.block_size, self.max_model_len)
        for one, blocks in part(got, 0, of=2).items():
            if one is not self.waiting[0] or not self.free_lanes or pool.free < blocks:
                raise Wrong(f"{one.request_id} joins, and there is no room for it, or it is not the first")
            pool.admit(one, blocks * pool.block_size)
            self.admit(plan)
        if self.waiting:
            self.leave_waiting(plan, part(got, 1, of=2) or "")
        for one in self.running:
            plan.add(one, one.gap)
        return plan


def serve(ex, requests, allocator=None):
    pool = Adapter(allocator or Shelf(8), num_blocks=8, block_size=4)
    return engine(AdmitScheduler(ex, allocator=pool, max_num_seqs=3, max_model_len=32)).run(requests)


@exercise("3.5", points=2, minutes=20)
class TestWaste:
    """Internal and external waste"""

    def test_internal_waste(self, ex):
        """what a request's blocks hold beyond its length, and free blocks are no part of it"""
        for owners, lengths, block_size, internal in (
            (["a", "a", "b", None], {"a": 5, "b": 4}, 4, 3),
            ([None, "a", "a", "a"], {"a": 2}, 16, 46),
            ([None, None], {}, 16, 0),
        ):
            expect(part(ex.waste(owners, lengths, block_size, needed=1), 0, of=2), internal, "internal waste")

    def test_scattered_room_is_lost(self, ex):
        """together enough, and no hole long enough: all free tokens are lost"""
        owners = [None, "a", None, None, "b", None]
        expect(part(ex.waste(owners, {"a": 4, "b": 4}, block_size=4, needed=3), 1, of=2), 16)

    def test_one_hole_is_enough(self, ex):
        """if one hole is long enough nothing is lost, whatever the others are like"""
        owners = [None, "a", None, None, None, "b", None]
        expect(part(ex.waste(owners, {"a": 4, "b": 4}, block_size=4, needed=3), 1, of=2), 0)

    def test_too_little_is_not_scattered(self, ex):
        """if all free blocks together are too few, the pool is full, and nothing is lost by scattering"""
        owners = [None, "a", None, "b", "b"]
        expect(part(ex.waste(owners, {"a": 4, "b": 8}, block_size=4, needed=3), 1, of=2), 0)

    def test_a_hole_at_the_end_counts(self, ex):
        """the last hole ends where the pool ends"""
        owners = ["a", None, "b", None, None]
        expect(part(ex.waste(owners, {"a": 4, "b": 4}, block_size=4, needed=2), 1, of=2), 0)

    def test_random_layouts(self, ex):
        """fifty layouts, compared with a count that tries every place"""
        draw = random.Random(3)
        for _ in range(50):
            owners = [draw.choice([None, "a", "b", "c"]) for _ in range(draw.randrange(1, 12))]
            lengths = {name: draw.randrange(1, owners.count(name) * 4 + 1) for name in "abc" if name in owners}
            needed, free = draw.randrange(1, 5), owners.count(None)
            fits = any(owners[i : i + needed] == [None] * needed for i in range(len(owners)))
            internal = sum(owners.count(name) * 4 - length for name, length in lengths.items())
            expect(ex.waste(owners, lengths, 4, needed), [internal, 0 if fits or free < needed else 4 * free])


def picture(ex):
    """The learner's allocator and admission in the engine."""
    jobs = [("a", 5, 3), ("b", 9, 5), ("c", 8, 8), ("d", 2, 2), ("e", 12, 4), ("f", 3, 6)]
    requests = [request(*job) for job in jobs]
    trace = serve(ex, requests, ex.BlockAllocator(8))
    right = all(one.output_token_ids == answers(one.prompt_token_ids, one.params.max_tokens) for one in requests)
    rows = [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, 3))]
    used = [round(record.kv["used"] / 4) for record in trace]
    taken = [(record.kv["used"] + record.kv["reserved"] + record.kv["internal"]) // 4 for record in trace]
    return "\n".join(
        [
            "the real engine, with your allocator and your admission (a capital reads its prompt, . is idle):",
            "",
            *rows,
            f"taken   {''.join(map(str, taken))}   of 8 blocks",
            f"filled  {''.join(map(str, used))}   with so many blocks' worth of tokens; the rest is reserved",
            "",
            f"every answer is {'right' if right else 'WRONG'}",
        ]
    )
