"""Checks of exercise 2."""

from bisect import bisect
from itertools import pairwise

from minibatcher import FinishReason, Request, SamplingParams, StepRecord
from minibatcher.grading import Wrong, exercise, expect, expect_timeline, part, timeline
from minibatcher.grading.toys import ToyRunner, answer, answers, engine, lanes, request
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.plan import Plan
from minibatcher.schedulers.iteration import IterationScheduler

# name: arrival, prompt, output
TABLE = {"a": (0, 4, 4), "b": (0, 2, 2), "c": (0, 5, 5), "d": (1, 2, 3), "e": (3, 3, 2), "f": (7, 1, 3)}
POOL, LANES = 20, 3


class Rows:
    """A learner's table. runs: name -> (lane, first step, one past the last), for the names that have a capital."""

    def __init__(self, ex):
        rows = ex.schedule_by_hand()
        if not isinstance(rows, (list, tuple)) or len(rows) != LANES or not all(isinstance(row, str) for row in rows):
            raise Wrong("three texts are expected, one for each lane", got=str(rows))
        self.steps = max(map(len, rows))
        self.rows = [row.ljust(self.steps, ".") for row in rows]
        self.runs = {}
        for lane, row in enumerate(self.rows):
            for step, sign in enumerate(row):
                if sign.isupper() and sign.lower() in TABLE:
                    run = row[step + 1 :]
                    self.runs.setdefault(
                        sign.lower(), (lane, step, step + 1 + len(run) - len(run.lstrip(sign.lower())))
                    )

    def place(self, name):
        return sum(TABLE[name][1:])

    def running(self, step, but=None):
        """Who is there in a step; `but` is left out."""
        return [name for name, (_, start, end) in self.runs.items() if start <= step < end and name != but]

    def wrong(self, sentence, step):
        raise Wrong(sentence, got="\n".join(self.rows), picture=timeline(self.rows, step, "yours"))


@exercise("2.1", points=2, minutes=20)
class TestByHand:
    """Schedule six requests by hand"""

    def test_everyone_gets_its_tokens(self, ex):
        """each request has one lane for as many steps as it wants output tokens, the first one a capital"""
        table = Rows(ex)
        signs = "".join(table.rows)
        for name, (_, _, output) in TABLE.items():
            if signs.count(name.upper()) != 1:
                raise Wrong(f"{name} reads its prompt in one step: one {name.upper()}", got="\n".join(table.rows))
            _, start, end = table.runs[name]
            if end - start != output or signs.count(name) != output - 1:
                steps = signs.count(name) + 1
                table.wrong(
                    f"{name} wants {output} tokens, one in each step; it has {steps}, {end - start} in a row", end - 1
                )

    def test_nobody_starts_before_it_arrives(self, ex):
        """a request that arrives before step n is not there in step n - 1"""
        table = Rows(ex)
        for name, (_, start, _) in table.runs.items():
            if start < TABLE[name][0]:
                table.wrong(f"{name} arrives before step {TABLE[name][0]}", start)

    def test_the_pool_is_never_overfull(self, ex):
        """the places of all that run fit in the pool of 20 tokens together"""
        table = Rows(ex)
        for step in range(table.steps):
            running = table.running(step)
            taken = sum(map(table.place, running))
            if taken > POOL:
                places = " + ".join(f"{table.place(name)} ({name})" for name in running)
                table.wrong(f"{places} = {taken}, and the pool holds {POOL}", step)

    def test_nobody_overtakes(self, ex):
        """who is first in the alphabet joins first, or in the same step"""
        table = Rows(ex)
        starts = sorted((name, start) for name, (_, start, _) in table.runs.items())
        for (first, before), (second, after) in pairwise(starts):
            if after < before:
                table.wrong(f"{second} joins before {first}", after)

    def test_nobody_waits_without_need(self, ex):
        """the first one that waits joins as soon as a lane and its place in the pool are free"""
        table = Rows(ex)
        for name, (_, start, _) in sorted(table.runs.items(), key=lambda item: (item[1][1], item[0])):
            for step in range(TABLE[name][0], start):
                others = table.running(step)
                first = all(table.runs[n][1] <= step for n in table.runs if n < name)
                if first and len(others) < LANES and table.place(name) + sum(map(table.place, others)) <= POOL:
                    table.wrong(
                        f"{name} is the first that waits, and a lane and {table.place(name)} tokens are free", step
                    )

    def test_the_lowest_free_lane_is_taken(self, ex):
        """who joins takes the lowest lane that is free"""
        table = Rows(ex)
        for name, (lane, start, _) in sorted(table.runs.items()):
            before = [n for n in table.running(start, but=name) if table.runs[n][1] < start or n < name]
            free = min(set(range(LANES)) - {table.runs[n][0] for n in before}, default=lane)
            if lane != free:
                table.wrong(f"{name} joins in lane {lane}, and lane {free} is free", start)


# -- the learner's functions in the real engine -----------------------------------------------------------------------


class JoinScheduler(IterationScheduler):
    """The package's stage 3; who joins is the learner's decision."""

    def __init__(self, ex, **shared):
        super().__init__(**shared)
        self.ex = ex

    def schedule(self):
        plan = Plan()
        places = [self.allocator.reservation(one) for one in self.waiting]
        joining = list(self.ex.who_joins(places, len(self.free_lanes), self.allocator.free * self.allocator.block_size))
        if joining != list(range(len(joining))):
            raise Wrong(
                "those who join are the first of the queue", expected=str([*range(len(joining))]), got=str(joining)
            )
        for _ in joining:
            if not self.free_lanes or self.allocator.admit(
                self.waiting[0], self.allocator.reservation(self.waiting[0])
            ):
                raise Wrong(f"{self.waiting[0].request_id} joins, and there is no room for it")
            self.admit(plan)
        for one in self.running:
            plan.add(one, one.gap)
        return plan


class CommitScheduler(JoinScheduler):
    """Moving the requests on is the learner's too."""

    def commit(self, plan, sampled):
        record, self.news = self.news, StepRecord()
        self.describe(plan, record)
        before = {one: one.num_tokens for one in plan.work}
        for one in self.ex.commit(plan.work, sampled, eos=1):
            self.end(one, FinishReason(one.finish_reason), record)
        record.emitted = {one.request_id: one.token_ids[n:] for one, n in before.items()}
        self.drop_finished()
        return record


class FlatToyRunner(ToyRunner):
    """Reads the tokens as the learner's function lays them out."""

    def __init__(self, clock, block_size, flatten):
        super().__init__(clock, block_size)
        self.flatten = flatten

    def execute(self, plan):
        self.clock.time += 1
        requests = list(plan.work)
        input_ids, positions, cu_seqlens, last_rows = self.flatten(plan.work)
        owner = [requests[bisect(cu_seqlens, row) - 1] for row in range(len(input_ids))]
        for row, one in enumerate(owner):
            self.cells[self.slot(one, positions[row])] = (input_ids[row], positions[row])
        context = lambda row: [self.cells.get(self.slot(owner[row], p), (0, 0)) for p in range(positions[row] + 1)]  # noqa: E731
        return {owner[row]: answer(context(row)) for row in last_rows}


def six_requests():
    return [request(name, prompt, output, arrival) for name, (arrival, prompt, output) in TABLE.items()]


def serve(ex, scheduler, requests):
    allocator = BlockAllocator(num_blocks=POOL, block_size=1, max_model_len=POOL)
    served = engine(scheduler(ex, allocator=allocator, max_num_seqs=LANES, max_model_len=POOL))
    if scheduler is CommitScheduler:
        served.runner = FlatToyRunner(served.clock, 1, ex.flatten)
    return served.run(requests)


@exercise("2.2", points=2, minutes=15)
class TestWhoJoins:
    """Who may join this step?"""

    def test_the_pool_is_spent_as_they_join(self, ex):
        """what one takes is not there for the next; exactly enough is enough"""
        for room, joining in {15: [0, 1, 2], 14: [0, 1], 11: [0, 1], 10: [0], 6: [0], 5: []}.items():
            expect(ex.who_joins([6, 5, 4], 5, room), joining)

    def test_each_takes_a_lane(self, ex):
        """no more join than lanes are free"""
        for free, joining in {5: [0, 1, 2], 2: [0, 1], 1: [0], 0: []}.items():
            expect(ex.who_joins([1, 1, 1], free, 100), joining)

    def test_nobody_passes_one_that_does_not_fit(self, ex):
        """if the first that waits does not fit, nobody behind it joins"""
        expect(ex.who_joins([9, 1, 1], 3, 5), [])
        expect(ex.who_joins([2, 9, 1], 3, 5), [0])

    def test_nobody_waits(self, ex):
        """with an empty queue nobody joins"""
        expect(ex.who_joins([], free_lanes=2, free_tokens=10), [])

    def test_the_queue_stays_as_it_was(self, ex):
        """the list is the engine's: it is not changed"""
        waiting = [3, 4, 5]
        ex.who_joins(waiting, 2, 10)
        expect(waiting, [3, 4, 5])

    def test_the_six_requests_in_the_engine(self, ex):
        """in the real engine the six requests of 2.1 are served as by hand"""
        expected = ["AaaaDddFff", "BbCcccc...", "....Ee...."]
        expect_timeline(lanes(serve(ex, JoinScheduler, six_requests()), LANES), expected)


def at(name, token_ids, num_computed, max_tokens=16, prompt=None):
    """A request that has got so far."""
    one = Request(token_ids[:prompt], SamplingParams(max_tokens=max_tokens), name)
    one.token_ids = list(token_ids)
    one.num_computed = num_computed
    return one


@exercise("2.3", points=3, minutes=25)
class TestFlatten:
    """Flatten a ragged batch"""

    def batch(self):
        """A whole prompt, a decode, the first part of a prompt, and the last part of one."""
        return {
            at("a", [11, 12, 13], 0): 3,
            at("b", [21, 22, 23, 24, 25], 4): 1,
            at("c", [31, 32, 33, 34, 35, 36], 0): 2,
            at("d", [41, 42, 43, 44], 2): 2,
        }

    def test_tokens_follow_one_another(self, ex):
        """each request brings the tokens that are not computed yet, as many as are asked for"""
        expect(part(ex.flatten(self.batch()), 0, of=4), [11, 12, 13, 25, 31, 32, 43, 44])

    def test_a_token_stands_at_its_own_position(self, ex):
        """a position counts from the beginning of the request, computed tokens included"""
        expect(part(ex.flatten(self.batch()), 1, of=4), [0, 1, 2, 4, 0, 1, 2, 3])

    def test_lengths_are_cumulative(self, ex):
        """request i has the rows from cu_seqlens[i] up to cu_seqlens[i + 1]"""
        expect(part(ex.flatten(self.batch()), 2, of=4), [0, 3, 4, 6, 8])

    def test_closed_gaps_are_sampled(self, ex):
        """a request whose gap is closed is sampled at its last row; one whose gap stays open is not"""
        expect(part(ex.flatten(self.batch()), 3, of=4), [2, 3, 7])

    def test_the_requests_stay_as_they_were(self, ex):
        """the model has not run yet: nothing is computed, and nothing is taken away"""
        batch = self.batch()
        ex.flatten(batch)
        expect([(len(r.token_ids), r.num_computed) for r in batch], [(3, 0), (5, 4), (6, 0), (4, 2)])

    def test_an_empty_step(self, ex):
        """no requests, no rows"""
        expect(ex.flatten({}), [[], [], [0], []])


@exercise("2.4", points=2, minutes=20)
class TestCommit:
    """Commit: the requests move on"""

    def test_computed_tokens_are_counted(self, ex):
        """num_computed grows by what this step computed"""
        a, b = at("a", [1] * 9, 0), at("b", [1] * 9, 3)
        ex.commit({a: 4, b: 2}, {}, eos=2)
        expect({"a": a.num_computed, "b": b.num_computed}, {"a": 4, "b": 5})

    def test_a_new_token_is_counted_and_not_computed(self, ex):
        """after a closed gap the new token is the last of token_ids, and the gap is 1"""
        a = at("a", [11, 12, 13], 0)
        ex.commit({a: 3}, {a: 40}, eos=2)
        expect([a.token_ids, a.num_computed], [[11, 12, 13, 40], 3], "token_ids, num_computed")

    def test_half_a_prompt_has_no_token_yet(self, ex):
        """a request whose gap stays open is moved on, and gets no token"""
        a, b = at("a", [11, 12, 13, 14], 0), at("b", [21, 22], 0)
        got = ex.commit({a: 2, b: 2}, {b: 40}, eos=2)
        expect(
            [a.token_ids, a.num_computed, list(got)], [[11, 12, 13, 14], 2, []], "a.token_ids, a.num_computed, returned"
        )

    def test_token_zero_is_a_token(self, ex):
        """a new token may have any number, and 0 is one"""
        a = at("a", [11, 12], 0)
        ex.commit({a: 2}, {a: 0}, eos=2)
        expect(a.token_ids, [11, 12, 0], "token_ids")

    def test_an_end_token_stops(self, ex):
        """the end token finishes a request with "stop", and stays in token_ids"""
        a = at("a", [11, 12], 0)
        got = [one.request_id for one in ex.commit({a: 2}, {a: 2}, eos=2)]
        expect([got, a.finish_reason, a.token_ids], [["a"], "stop", [11, 12, 2]], "returned, finish_reason, token_ids")

    def test_max_tokens_finish(self, ex):
        """the max_tokens-th output token finishes a request with "length", and not one before"""
        a, b = at("a", [11, 12, 40, 41], 3, 3, prompt=2), at("b", [21, 22, 23, 40], 3, 3, prompt=3)
        got = [one.request_id for one in ex.commit({a: 1, b: 1}, {a: 42, b: 41}, eos=2)]
        expect([got, a.finish_reason, b.finish_reason], [["a"], "length", None], "returned, and both finish_reasons")

    def test_an_end_token_as_the_last_is_a_stop(self, ex):
        """an end token that comes as the last one allowed is a "stop", not a "length": the end is the reason"""
        a = at("a", [11, 12], 0, max_tokens=1)
        got = [one.request_id for one in ex.commit({a: 2}, {a: 2}, eos=2)]
        expect([got, a.finish_reason], [["a"], "stop"])

    def test_every_answer_in_the_engine(self, ex):
        """in the real engine every request gets the tokens that it would get alone"""
        requests = six_requests()
        allocator = BlockAllocator(POOL, 1, POOL)
        served = engine(OnlyCommit(ex, allocator=allocator, max_num_seqs=LANES, max_model_len=POOL))
        served.run(requests)
        got = {one.request_id: one.output_token_ids for one in requests}
        expect(got, {one.request_id: answers(one.prompt_token_ids, one.params.max_tokens) for one in requests})


class OnlyCommit(CommitScheduler):
    schedule = IterationScheduler.schedule


def picture(ex):
    """The learner's three functions as the engine's step."""
    requests = six_requests()
    trace = serve(ex, CommitScheduler, requests)
    rows = [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, LANES))]
    return "\n".join(
        ["the real engine, with your who_joins, flatten and commit (a capital reads its prompt, . is idle):", "", *rows]
    )
