"""Checks of exercise 6."""

import heapq

from minibatcher import Request
from minibatcher.grading import Wrong, exercise, expect, expect_timeline
from minibatcher.grading.toys import answers, engine, lanes, request
from minibatcher.memory.allocator import Allocator
from minibatcher.plan import Plan
from minibatcher.request import Status
from minibatcher.schedulers.iteration import IterationScheduler
from minibatcher.trace import Preemption


def at(name, tokens, blocks, computed=None):
    """A request with so many tokens, all of them but the last one computed."""
    one = Request([ord(name)] * tokens, request_id=name)
    one.block_table, one.num_computed = list(blocks), tokens - 1 if computed is None else computed
    return one


def names(requests):
    return [one.request_id for one in requests]


def table(*requests):
    return {one.request_id: sorted(one.block_table) for one in requests}


@exercise("6.1", points=3, minutes=30)
class TestMakeRoom:
    """Choose a victim, and recompute"""

    def test_there_is_room_already(self, ex):
        """a block table with room for all tokens, even exactly, stays as it is"""
        a, b = at("a", 3, [0]), at("b", 8, [1, 2])
        free = [3]
        got = [ex.make_room(one, [a, b], [], free, 4) for one in (a, b)]
        expect([got, table(a, b), free], [[True, True], {"a": [0], "b": [1, 2]}, [3]])

    def test_a_free_block_is_taken(self, ex):
        """if a block is needed and one is free, nobody gives way"""
        a, b = at("a", 9, [0, 1]), at("b", 3, [2])
        running, waiting, free = [a, b], [], [3, 4]
        got = ex.make_room(a, running, waiting, free, 4)
        expect([got, len(a.block_table), len(free), names(running), waiting], [True, 3, 1, ["a", "b"], []])

    def test_the_last_one_gives_way(self, ex):
        """the victim is the last of those that run, whoever asks"""
        a, b, c = at("a", 4, [0]), at("b", 9, [1, 2]), at("c", 9, [3, 4, 5])
        running, waiting = [a, b, c], []
        ex.make_room(b, running, waiting, [], 4)
        expect([names(running), names(waiting)], [["a", "b"], ["c"]], "running, waiting")

    def test_what_the_victim_loses_and_keeps(self, ex):
        """the victim has no blocks and nothing computed any more, and all of its tokens, output included"""
        a, b = at("a", 5, [0]), at("b", 3, [1, 2])
        b.token_ids += [70, 71]
        b.num_computed = 4
        ex.make_room(a, [a, b], [], [], 4)
        expect([b.block_table, b.num_computed, b.token_ids], [[], 0, [98, 98, 98, 70, 71]], "the victim afterwards")

    def test_no_block_is_lost(self, ex):
        """afterwards every block is free, or in one block table"""
        a, b = at("a", 9, [4, 1]), at("b", 10, [0, 3, 2])
        free = []
        ex.make_room(a, [a, b], [], free, 4)
        expect(sorted([*free, *a.block_table, *b.block_table]), range(5))

    def test_the_victim_waits_first(self, ex):
        """the victim came before all who wait, so it is the first of the queue"""
        a, b, c, d = at("a", 5, [0]), at("b", 4, [1]), at("c", 4, []), at("d", 4, [])
        waiting = [c, d]
        ex.make_room(a, [a, b], waiting, [], 4)
        expect(names(waiting), ["b", "c", "d"])

    def test_no_more_victims_than_needed(self, ex):
        """when there is room, the others go on"""
        a, b, c = at("a", 5, [0]), at("b", 4, [1]), at("c", 4, [2])
        running = [a, b, c]
        ex.make_room(a, running, [], [], 4)
        expect(names(running), ["a", "b"])

    def test_several_victims_keep_their_order(self, ex):
        """if one victim is not enough, the next one gives way too, and they wait in order of arrival"""
        a, b, c, d = at("a", 12, [0]), at("b", 4, [1]), at("c", 4, [2]), at("d", 4, [])
        running, waiting = [a, b, c], [d]
        got = ex.make_room(a, running, waiting, [], 4)
        expect([got, names(running), names(waiting)], [True, ["a"], ["b", "c", "d"]], "returned, running, waiting")

    def test_the_request_itself_may_give_way(self, ex):
        """if the request is the last one, it gives way itself, and those before it go on"""
        a, b = at("a", 4, [0]), at("b", 5, [1])
        running, waiting, free = [a, b], [], []
        got = ex.make_room(b, running, waiting, free, 4)
        expect(
            [got, names(running), names(waiting), free], [False, ["a"], ["b"], [1]], "returned, running, waiting, free"
        )

    def test_the_victims_in_the_engine(self, ex):
        """in the real engine, with 6 blocks of 4 tokens, the schedule is as by hand, and every answer is right"""
        requests = [request(*job) for job in JOBS]
        trace = serve(ex, requests)
        expect_timeline(lanes(trace, 3), EXPECTED)
        wrong = [one for one in requests if one.output_token_ids != answers(one.prompt_token_ids, 8)]
        if wrong:
            raise Wrong(f"the tokens of {', '.join(names(wrong))} are not what it would get alone")


JOBS = [("a", 7, 8), ("b", 4, 8), ("c", 6, 8)]
EXPECTED = ["AaaaaaaaBb....", "Bbbbbb..Cccccc", "Cc............"]


class Shelf(Allocator):
    """Blocks in a plain list, which the learner's function may take from."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks, 4, num_blocks * 4)
        self.blocks = list(range(num_blocks))

    def take(self, n):
        return None if n > len(self.blocks) else [self.blocks.pop() for _ in range(n)]

    def give_back(self, blocks):
        self.blocks += blocks

    def why_not(self, n):
        return f"needs {n} blocks, {self.free} free"

    @property
    def free(self):
        return len(self.blocks)


class OnDemand(IterationScheduler):
    """Blocks on demand: the learner's function decides who gives way. Prompts are not cut."""

    def __init__(self, ex, **shared):
        super().__init__(**shared)
        self.ex = ex

    def schedule(self):
        plan = Plan()
        for one in list(self.running):
            if one.status is Status.RUNNING:
                before = {each: each.num_computed for each in self.running}
                self.ex.make_room(one, self.running, self.waiting, self.allocator.blocks, 4)
                for victim in set(before) - set(self.running):
                    self.gave_way(plan, victim, before[victim])
                if one.status is Status.RUNNING:
                    plan.add(one, one.gap)
        while self.waiting and self.free_lanes and not plan.preempted:
            if self.allocator.admit(self.waiting[0], self.waiting[0].num_tokens):
                break
            one = self.admit(plan)
            plan.add(one, one.gap)
        return plan

    def gave_way(self, plan, victim, computed):
        heapq.heappush(self.free_lanes, victim.lane)
        victim.status = Status.PREEMPTED
        victim.recomputed = max(victim.recomputed, computed)
        plan.preempted[victim] = Preemption(victim.request_id, "recompute", "memory", computed, 0, "no block is free")


def serve(ex, requests, num_blocks=6):
    scheduler = OnDemand(ex, allocator=Shelf(num_blocks), max_num_seqs=3, max_model_len=num_blocks * 4)
    return engine(scheduler).run(requests)


def popped(queue, events, until, step=1):
    """Adds each (name, priority, time) when its time comes, and pops one name every `step` seconds."""
    order, events = [], sorted(events, key=lambda event: event[2])
    for now in range(0, until, step):
        while events and events[0][2] <= now:
            queue.add(*events.pop(0))
        order.append(queue.pop(now))
    return order


@exercise("6.2", points=3, minutes=30)
class TestAgingQueue:
    """A queue with ageing"""

    def test_the_more_important_goes_first(self, ex):
        """of those that come at the same time the smallest priority goes first"""
        queue = ex.AgingQueue(aging_s=10)
        for name, priority in (("b", 2), ("a", 0), ("c", 5)):
            queue.add(name, priority, 0)
        expect([queue.pop(0) for _ in range(3)], ["a", "b", "c"])

    def test_first_come_among_equals(self, ex):
        """of those with the same priority the one that came first goes first, even in the same moment"""
        queue = ex.AgingQueue(aging_s=10)
        for name, now in (("d", 0), ("c", 0), ("b", 1), ("a", 7)):
            queue.add(name, 1, now)
        expect([queue.pop(9) for _ in range(4)], ["d", "c", "b", "a"])

    def test_an_important_newcomer_overtakes(self, ex):
        """a little waiting does not make up for several levels"""
        queue = ex.AgingQueue(aging_s=10)
        queue.add("unimportant", 5, 0)
        queue.add("important", 0, 30)
        expect(queue.pop(30), "important")

    def test_nobody_waits_for_ever(self, ex):
        """while an important one comes every second, one of priority 3 goes within 4 * aging_s seconds"""
        stream = [(f"important {now}", 0, now) for now in range(200)]
        order = popped(ex.AgingQueue(aging_s=10), [("unimportant", 3, 0), *stream], 100)
        if "unimportant" not in order[:42]:
            when = order.index("unimportant") if "unimportant" in order else None
            raise Wrong(
                f"it came at 0 s and went {f'after {when} s' if when else 'not in 100 s'}; the bound is 40 s",
                got=str(when),
            )

    def test_everybody_ages(self, ex):
        """the bound holds for each of several that wait, and for one that comes later"""
        slow = [("p2", 2, 0), ("p4", 4, 0), ("late p3", 3, 50)]
        stream = [(f"important {now}", 0, now) for now in range(300)]
        order = popped(ex.AgingQueue(aging_s=10), [*slow, *stream], 200)
        bounds = {"p2": 30, "p4": 50, "late p3": 50 + 40}
        found = {name: order.index(name) if name in order else None for name in bounds}
        late = [name for name, when in found.items() if when is None or when > bounds[name] + 5]
        if late:
            raise Wrong(f"{late[0]} goes later than its bound of {bounds[late[0]]} s", got=str(found))

    def test_waiting_counts_in_seconds(self, ex):
        """what counts is the time that has passed, however often somebody was popped"""
        often, seldom = ex.AgingQueue(aging_s=100), ex.AgingQueue(aging_s=100)
        first = popped(often, [("unimportant", 2, 0), *((f"important {n}", 0, n) for n in range(60))], 60)
        seldom.add("unimportant", 2, 0)
        seldom.add("important", 0, 400)
        expect(["unimportant" in first, seldom.pop(400)], [False, "unimportant"], "gone within 60 s; first after 400 s")

    def test_everyone_comes_out_once(self, ex):
        """nobody is lost, nobody comes twice, and an empty queue gives None"""
        queue = ex.AgingQueue(aging_s=10)
        for name in "abcdef":
            queue.add(name, 1 + (name in "bd"), 3)
        got = [queue.pop(3) for _ in range(7)]
        expect([sorted(got[:6], key=str), got[6]], [list("abcdef"), None])
        queue.add("g", 1, 4)
        expect([queue.pop(4), queue.pop(5)], ["g", None])


def picture(ex):
    """Both parts in the engine: blocks on demand, and a queue under a stream of important requests."""
    requests = [request("abcdef"[n], 3 + n % 3, 8) for n in range(6)]
    trace = serve(ex, requests, num_blocks=7)
    right = all(one.output_token_ids == answers(one.prompt_token_ids, 8) for one in requests)
    lost = sum(one.tokens for record in trace for one in record.preempted)
    rows = ["the real engine, with your make_room (a capital reads a prompt, or computes again):", ""]
    rows += [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, 3))]
    rows += ["", f"every answer is {'right' if right else 'WRONG'}; {lost} computed tokens were lost"]
    rows += ["", "your queue, with an important request every second: one of priority p goes after so many seconds"]
    for aging_s in (5, 20):
        slow = [(f"p{p}", p, 0) for p in range(1, 5)]
        order = popped(ex.AgingQueue(aging_s), [*slow, *((f"{n}", 0, n) for n in range(200))], 150)
        rows.append(f"    aging_s {aging_s:>2}:  " + ", ".join(f"p{p} {order.index(f'p{p}'):>3}" for p in range(1, 5)))
    return "\n".join(rows)
