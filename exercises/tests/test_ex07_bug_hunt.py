"""Checks of exercise 7."""

from functools import partial

from broken import BUDGET, LANES, NUM_BLOCKS, RECORDED, Bug2, Bug3, Right, Steps, faults, make, serve

from minibatcher import Request
from minibatcher.grading import Wrong, exercise, expect
from minibatcher.grading.toys import lanes


def at(name, tokens, computed=0):
    one = Request([7] * tokens, request_id=name)
    one.num_computed = computed
    return one


def names(requests):
    return [one.request_id for one in requests]


def step(ex, waiting, running, budget=8, max_num_seqs=3):
    work = ex.repaired_step(waiting, running, budget, max_num_seqs)
    return {one.request_id: n for one, n in work.items()}


@exercise("7.1", points=2, minutes=20)
class TestRepair:
    """Bug 1: repair it"""

    def test_nobody_is_lost(self, ex):
        """whoever does not join still waits, and in the same order"""
        a, b, c, d = at("a", 4, 3), at("b", 5, 4), at("c", 7), at("d", 2)
        waiting, running = [c, d], [a, b]
        step(ex, waiting, running, budget=8, max_num_seqs=4)
        expect([names(waiting), names(running)], [["c", "d"], ["a", "b"]], "waiting, running")

    def test_who_fits_joins(self, ex):
        """those that fit leave the queue, run, and read their whole prompt; exactly enough is enough"""
        a, b, c, d = at("a", 4, 3), at("b", 5), at("c", 2), at("d", 1)
        waiting, running = [b, c, d], [a]
        got = step(ex, waiting, running, budget=8, max_num_seqs=4)
        expected = [{"a": 1, "b": 5, "c": 2}, ["d"], ["a", "b", "c"]]
        expect([got, names(waiting), names(running)], expected, "work, waiting, running")

    def test_the_budget_still_holds(self, ex):
        """a step computes no more than its budget, and no more run than there are lanes"""
        a, b, c = at("a", 4, 3), at("b", 8), at("c", 1)
        waiting, running = [b, c], [a]
        got = step(ex, waiting, running, budget=8)
        expect([sum(got.values()) <= 8, names(running)], [True, ["a"]], "within the budget, and running")
        waiting, running = [at("d", 1), at("e", 1)], [at("a", 4, 3), at("b", 5, 4)]
        step(ex, waiting, running, budget=8, max_num_seqs=3)
        expect([names(waiting), names(running)], [["e"], ["a", "b", "d"]], "waiting, running, with 3 lanes")

    def test_the_recorded_workload_is_served(self, ex):
        """on the workload of the trace everybody gets an answer, in order of arrival"""
        requests = make(RECORDED[1])
        trace = serve(partial(Steps, ex.repaired_step), requests, num_blocks=30)
        if found := faults(requests):
            raise Wrong("; ".join(found), got="; ".join(found))
        joined = [id for record in trace for id in record.admitted]
        expect(joined, list("abcdef"), "those that joined, in order")


def workload(ex, function):
    """What the learner wrote, looked through."""
    jobs = getattr(ex, function)()
    if not isinstance(jobs, (list, tuple)) or not 1 <= len(jobs) <= 6:
        raise Wrong("1 to 6 requests are asked for", got=str(jobs))
    for job in jobs:
        if len(job) != 3 or job[1] < 1 or job[2] < 1 or job[1] + job[2] > NUM_BLOCKS * 4:
            raise Wrong(
                "a request is (arrival, prompt, output), of 1 or more, and of at most 32 together", got=str(job)
            )
    return [tuple(job) for job in jobs]


def well_served(jobs):
    requests = make(jobs)
    serve(Right, requests)
    if found := faults(requests):
        raise Wrong(f"the right engine does not serve it well: {'; '.join(found)}", got="; ".join(found))


def exposed(jobs, bug):
    """What goes wrong on the engine with the bug; the timeline if nothing does."""
    requests = make(jobs)
    trace = serve(bug, requests)
    found = faults(requests)
    if not found:
        rows = [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, LANES))]
        raise Wrong(
            "the engine with the bug serves it well too, so the bug does not show:",
            got=str(jobs),
            picture="\n".join(rows),
        )
    return found


@exercise("7.2", points=2, minutes=25)
class TestExposeBug2:
    """Bug 2: a workload that exposes it"""

    def test_workload_2_is_small_and_valid(self, ex):
        """at most six requests, which the right engine serves well"""
        well_served(workload(ex, "workload_for_bug_2"))

    def test_workload_2_exposes_the_bug(self, ex):
        """on the engine with the bug something goes wrong"""
        exposed(workload(ex, "workload_for_bug_2"), Bug2)


@exercise("7.3", points=2, minutes=25)
class TestExposeBug3:
    """Bug 3: a workload that exposes it"""

    def test_workload_3_is_small_and_valid(self, ex):
        """at most six requests, which the right engine serves well"""
        well_served(workload(ex, "workload_for_bug_3"))

    def test_workload_3_exposes_the_bug(self, ex):
        """on the engine with the bug something goes wrong"""
        exposed(workload(ex, "workload_for_bug_3"), Bug3)


def picture(ex):
    """What the repaired engine and the two workloads do."""
    requests = make(RECORDED[1])
    trace = serve(partial(Steps, ex.repaired_step), requests, num_blocks=30)
    rows = [f"the real engine with your repair (budget {BUDGET}):", ""]
    rows += [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, LANES))]
    for number, bug in ((2, Bug2), (3, Bug3)):
        jobs = workload(ex, f"workload_for_bug_{number}")
        rows += ["", f"bug {number} on your workload: {'; '.join(exposed(jobs, bug))}"]
    return "\n".join(rows)
