"""Checks of exercise 5."""

import random

from minibatcher.grading import Wrong, exercise, expect, expect_error, expect_timeline, part
from minibatcher.grading.toys import engine, lanes, request
from minibatcher.measure.metrics import requests as metrics
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.plan import Plan
from minibatcher.schedulers.chunked import ChunkedScheduler


class SplitScheduler(ChunkedScheduler):
    """The package's stage 5; the budget is split by the learner."""

    def __init__(self, ex, **shared):
        super().__init__(**shared)
        self.ex = ex

    def schedule(self):
        plan = Plan(budget=self.max_num_batched_tokens)
        while self.waiting and self.free_lanes and sum(one.gap for one in self.running) < plan.budget:
            if self.allocator.admit(self.waiting[0], self.allocator.reservation(self.waiting[0])):
                break
            self.admit(plan)
        shares = list(self.ex.split_budget([one.gap for one in self.running], plan.budget))
        for one, n in zip(self.running, shares, strict=True):
            if n:
                plan.add(one, n)
        if plan.budget < 0:
            raise Wrong(f"{self.max_num_batched_tokens - plan.budget} tokens, and the budget is 6", got=str(shares))
        return plan


def serve(requests, budget, scheduler=ChunkedScheduler, **more):
    settings = {"max_num_seqs": 3, "max_model_len": 1000, "max_num_batched_tokens": budget}
    step = {name: more.pop(name) for name in ("base_s", "token_s") if name in more}
    return engine(scheduler(allocator=BlockAllocator(1000, 4, 1000), **settings, **more), **step).run(requests)


@exercise("5.1", points=3, minutes=25)
class TestSplitBudget:
    """Split a budget, decodes first"""

    def test_decodes_come_first(self, ex):
        """every request with a gap of 1 gets its token before any prompt gets one"""
        expect(ex.split_budget([5, 1, 7, 1], 4), [2, 1, 0, 1])
        expect(ex.split_budget([9, 9, 1], 1), [0, 0, 1])

    def test_prompts_are_served_in_order(self, ex):
        """the first prompt gets all it can use before the next one gets something"""
        expect(ex.split_budget([6, 4, 9], 8), [6, 2, 0])
        expect(ex.split_budget([3, 4, 9], 8), [3, 4, 1])

    def test_a_prompt_may_be_cut(self, ex):
        """a prompt that does not fit gets what is left of the budget"""
        expect(ex.split_budget([10], 4), [4])
        expect(ex.split_budget([1, 10, 2], 5), [1, 4, 0])

    def test_nobody_gets_more_than_its_gap(self, ex):
        """a budget that is too large is not used up"""
        expect(ex.split_budget([2, 1], 10), [2, 1])
        expect(ex.split_budget([], 10), [])

    def test_a_budget_for_some_of_the_decodes(self, ex):
        """if there are more decodes than tokens, the first ones get theirs"""
        expect(ex.split_budget([4, 1, 1, 1], 2), [0, 1, 1, 0])

    def test_any_gaps(self, ex):
        """two hundred times: the whole budget is used, if there is work for it, and no more"""
        draw = random.Random(5)
        for _ in range(200):
            gaps, budget = [draw.choice([1, 1, 2, 9]) for _ in range(draw.randrange(9))], draw.randrange(1, 20)
            got, mine = list(ex.split_budget(list(gaps), budget)), list(gaps)
            ex.split_budget(mine, budget)
            expect([sum(got), len(got)], [min(budget, sum(gaps)), len(gaps)], "all shares together, and how many")
            expect(mine, gaps, "the list of gaps stays as it was")

    def test_the_budget_in_the_engine(self, ex):
        """in the real engine, with a budget of 6, a long prompt stops nobody"""
        requests = [request("a", 3, 8), request("b", 11, 3, 1), request("c", 2, 3, 2)]
        expected = ["Aaaaaaaa", ".BBBbb..", "...Ccc.."]
        expect_timeline(lanes(serve(requests, 6, SplitScheduler, ex=ex), 3), expected)


@exercise("5.2", points=2, minutes=15)
class TestChunkSchedule:
    """The chunks of one prompt"""

    def test_chunks_take_what_the_streams_leave(self, ex):
        """a chunk is the budget without a token for each stream"""
        expect(ex.chunk_schedule(12, 6, 0), [6, 6])
        expect(ex.chunk_schedule(12, 6, 2), [4, 4, 4])

    def test_the_last_chunk_is_the_rest(self, ex):
        """the last chunk has what is left, and is not empty"""
        expect(ex.chunk_schedule(13, 6, 0), [6, 6, 1])
        expect(ex.chunk_schedule(11, 6, 1), [5, 5, 1])
        expect(ex.chunk_schedule(10, 6, 1), [5, 5])

    def test_a_short_prompt_takes_one_step(self, ex):
        """a prompt that fits is read at once"""
        expect(ex.chunk_schedule(3, 10, 2), [3])
        expect(ex.chunk_schedule(8, 10, 2), [8])

    def test_no_room_for_the_prompt(self, ex):
        """if the streams take the whole budget, ValueError is raised"""
        expect_error(ValueError, ex.chunk_schedule, 10, 4, 4)
        expect_error(ValueError, ex.chunk_schedule, 10, 4, 7)

    def test_the_chunks_of_the_engine(self, ex):
        """the package's own stage 5 reads a prompt in these chunks"""
        for prompt, budget in ((50, 16), (45, 17), (7, 30)):
            trace = serve([request("a", 1, 40), request("b", 1, 40), request("c", prompt, 2, 5)], budget)
            chunks = [
                work.tokens for record in trace for work in record.work if (work.id, work.kind) == ("c", "prefill")
            ]
            expect(ex.chunk_schedule(prompt, budget, 2), chunks)


@exercise("5.3", points=3, minutes=25)
class TestStall:
    """What a new prompt costs, and whom"""

    def test_the_longest_step_is_the_gap(self, ex):
        """with chunks, a stream waits for the longest of the steps"""
        for chunks, gap in (([100, 50], 112.0), ([20, 80, 40], 92.0)):
            expect(part(ex.stall(chunks, 2, 10.0, 1.0, True), 0, of=2), gap, "the largest gap")

    def test_the_first_token_waits_for_all_steps(self, ex):
        """the new request has its first token after the last chunk; every step has its base, and serves the streams"""
        for chunks, first in (([100, 50], 174.0), ([25] * 6, 222.0)):
            expect(part(ex.stall(chunks, 2, 10.0, 1.0, True), 1, of=2), first, "the time to first token")

    def test_one_step_for_the_whole_prompt(self, ex):
        """a prompt in one step with the streams (Orca): gap and first token are that step"""
        expect(ex.stall([1000], 4, 5.0, 0.5, True), [507.0, 507.0])

    def test_prefill_first(self, ex):
        """a prompt that is read alone: the streams wait for all of its steps, and for their own"""
        for chunks, gap in (([150], 172.0), ([100, 50], 182.0)):
            expect(part(ex.stall(chunks, 2, 10.0, 1.0, False), 0, of=2), gap, "the largest gap")

    def test_the_first_token_of_prefill_first(self, ex):
        """the new request does not wait for the streams' step"""
        for chunks, first in (([150], 160.0), ([100, 50], 170.0)):
            expect(part(ex.stall(chunks, 2, 10.0, 1.0, False), 1, of=2), first, "the time to first token")

    def test_the_gap_in_the_engine(self, ex):
        """the package's own stage 5, on a clock with these costs, has this gap and this time to first token"""
        for budget in (16, 64):
            got = ex.stall([budget - 2] * 4, 2, 0.5, 0.25, True)
            expect(got, measured(4 * (budget - 2), budget))


def measured(prompt, budget, base_s=0.5, token_s=0.25):
    """The streams' largest gap, and the time to first token of a prompt that comes between two steps, in the engine."""
    streams = [request("a", 1, 40), request("b", 1, 40)]
    arrival = base_s + 2 * token_s  # when the first step is over
    trace = serve([*streams, request("c", prompt, 2, arrival)], budget, base_s=base_s, token_s=token_s)
    found = metrics(trace)
    return [max(found["a"].itls), found["c"].ttft]


def picture(ex):
    """A long prompt under three budgets: the learner's numbers, and the engine's."""
    rows = [
        "two streams, a prompt of 120 tokens arrives; a step costs 0.5 s, and 0.25 s a token",
        "",
        "budget   longest gap (engine)    first token (engine)",
    ]
    for budget in (8, 32, 122):
        gap, first = ex.stall(ex.chunk_schedule(120, budget, 2), 2, 0.5, 0.25, True)
        engine_gap, engine_first = measured(120, budget)
        rows.append(f"{budget:>6}   {gap:>9.2f} s  ({engine_gap:5.2f})   {first:>9.2f} s  ({engine_first:5.2f})")
    requests = [request("a", 3, 9), request("b", 11, 3, 1), request("c", 2, 3, 2)]
    shown = lanes(serve(requests, 6, SplitScheduler, ex=ex), 3)
    rows += ["", "and with your split of a budget of 6 (a capital reads a part of its prompt):", ""]
    return "\n".join(rows + [f"lane {lane}  {row}" for lane, row in enumerate(shown)])
