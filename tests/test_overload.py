"""More arrives than can be served: the queue grows without end, or the door closes, or deadlines pass."""

from __future__ import annotations

import pytest
from stub import engine, request

from minibatcher import Engine
from minibatcher.measure.capacity import limited_by
from minibatcher.measure.metrics import little, requests, summary
from minibatcher.measure.simulator import build_simulated, simulated_requests
from minibatcher.measure.workloads import arrivals, closed_loop, lengths, synthetic


def overloaded(deadline_s: float | None = None, rate: float = 4.0, n: int = 240, **settings):
    """Two lanes of 100 tokens each on a modelled T4, at about four times what they carry; prompts are short."""
    jobs = synthetic(n, arrivals("poisson", rate, 2), lengths("20"), lengths("100"), 2)
    engine = build_simulated(
        "preemptive", "t4", "llama-3.2-1b", dtype="float16", max_num_seqs=2, max_model_len=128, **settings
    )
    return engine.run(simulated_requests(jobs, deadline_s=deadline_s))


def waiting(trace) -> list[int]:
    return [1 + record.waiting.behind if record.waiting else 0 for record in trace if record.work]


def longest_wait(trace) -> float:
    return max(r.ttft for r in requests(trace).values() if r.ttft is not None)


def test_without_a_limit_the_queue_grows_as_long_as_more_arrives():
    trace = overloaded(rate=10.0)
    queue = waiting(trace)
    arrivals_last = sum(bool(record.arrived) for record in trace)
    assert arrivals_last and max(queue) > 100
    # in the first half of the arrivals it is half as long as at their end
    end = queue.index(max(queue))
    assert queue[end // 2] == pytest.approx(max(queue) / 2, rel=0.2)
    assert summary(trace).finish_reasons == {"length": 240}


def test_reject_keeps_the_queue_short_and_ends_the_others_at_once():
    trace = overloaded(rate=10.0, max_queue=5)
    found = requests(trace)
    rejected = [r for r in found.values() if r.finish_reason == "error"]
    assert max(waiting(trace)) == 5 and len(rejected) > 100 and len(rejected) < 240
    step = max(record.t1 - record.t0 for record in trace)
    assert all(r.finished - r.arrival <= 2 * step and not r.token_times for r in rejected)
    assert longest_wait(trace) < longest_wait(overloaded(rate=10.0)) / 5
    assert summary(trace).finish_reasons["length"] == 240 - len(rejected)


def test_a_rejected_request_says_why():
    stub = engine("iteration")
    eng = Engine(stub.scheduler, stub.runner, stub.clock, max_queue=1)
    asked = [request(name, arrival=0.0) for name in "abcdefg"]
    eng.add_all(asked)  # three lanes, and one may wait
    assert [r.error for r in asked] == [None] * 4 + ["rejected: 1 requests wait already (max_queue)"] * 3
    assert [r.finish_reason for r in asked[4:]] == ["error"] * 3
    eng.run()
    assert [r.finish_reason for r in asked[:4]] == ["length"] * 4


def test_wait_keeps_the_others_outside_and_loses_none():
    trace = overloaded(rate=10.0, max_queue=5, when_full="wait")
    assert max(waiting(trace)) == 5 and summary(trace).finish_reasons == {"length": 240}
    # whoever is outside waits all the same: its time counts from its arrival
    assert longest_wait(trace) == pytest.approx(longest_wait(overloaded(rate=10.0)), rel=0.01)
    seen, expected = little(trace)
    assert seen == pytest.approx(expected)


def test_a_free_lane_is_no_queue():
    for when_full in ("reject", "wait"):
        stub = engine("iteration")
        eng = Engine(stub.scheduler, stub.runner, stub.clock, max_queue=0, when_full=when_full)
        trace = eng.run([request(str(i), arrival=0.0) for i in range(3)])
        assert summary(trace).finish_reasons == {"length": 3}, "three lanes are free, nobody has to wait"


def test_who_waits_outside_can_be_aborted_and_is_not_forgotten():
    stub = engine("iteration", max_num_seqs=1)
    eng = Engine(stub.scheduler, stub.runner, stub.clock, max_queue=0, when_full="wait")
    asked = [request(name, max_tokens=3) for name in "abc"]
    eng.add_all(asked)
    assert eng.has_work and [r.request_id for r in eng.scheduler.waiting] == ["a"]
    assert eng.abort("b") and asked[1].finish_reason == "abort" and asked[1].arrival == 0.0
    trace = eng.run()
    assert [r.finish_reason for r in asked] == ["length", "abort", "length"]
    assert [id for record in trace for id in record.admitted] == ["a", "c"]


def test_the_door_of_a_static_batch_that_waits_to_fill():
    """Nobody else can come in, so the batch leaves when its time is over: no step waits for an arrival in the past."""
    stub = engine("static", max_num_seqs=4, max_wait_s=2.0)
    eng = Engine(stub.scheduler, stub.runner, stub.clock, max_queue=0, when_full="wait")
    trace = eng.run([request(str(i), max_tokens=2, arrival=0.5 * i) for i in range(9)])
    assert summary(trace).finish_reasons == {"length": 9}


def test_deadlines_bound_the_wait():
    trace = overloaded(rate=10.0, deadline_s=3.0)
    found = requests(trace).values()
    assert 50 < sum(r.finish_reason == "abort" for r in found) < 240
    assert longest_wait(trace) <= 3.0 + 0.1
    assert max(waiting(trace)) < max(waiting(overloaded(rate=10.0))) / 2


def test_deadlines_pass_outside_too():
    trace = overloaded(rate=10.0, deadline_s=3.0, max_queue=2, when_full="wait")
    assert {r.finish_reason for r in requests(trace).values()} == {"length", "abort"}
    assert longest_wait(trace) <= 3.0 + 0.1


def test_those_whose_deadline_passed_outside_do_not_stand_in_the_door():
    stub = engine("iteration", max_num_seqs=1)
    eng = Engine(stub.scheduler, stub.runner, stub.clock, max_queue=0, when_full="wait")
    late = [request(f"late{i}", arrival=0.0, deadline_s=3.0) for i in range(5)]
    trace = eng.run([request("first", max_tokens=8, arrival=0.0), *late, request("last", arrival=5.0)])
    ends = [number for number, record in enumerate(trace) if ("first", "length") in record.finished]
    begins = [number for number, record in enumerate(trace) if "last" in record.admitted]
    assert begins == [ends[0] + 1] and {id for id, _ in trace[begins[0]].finished} == {r.request_id for r in late}


def test_a_lane_without_memory_is_no_place():
    """20 lanes, and blocks for two requests: the lanes that stay free let nobody in beyond the queue's limit."""
    jobs = synthetic(60, arrivals("steady", 20.0), lengths("100"), lengths("100"))
    eng = build_simulated("paged", max_num_seqs=20, max_model_len=256, num_blocks=26, max_queue=3)
    trace = eng.run(simulated_requests(jobs))
    assert max(waiting(trace)) == 3 and summary(trace).max_running == 2
    assert summary(trace).finish_reasons["error"] > 20


def test_clients_that_wait_for_answers_do_not_overload():
    eng = build_simulated("preemptive", max_num_seqs=2, max_model_len=128)
    jobs = synthetic(50, arrivals("at-once", 1.0), lengths("20"), lengths("100"))
    trace = closed_loop(eng, simulated_requests(jobs), clients=6)
    assert max(waiting(trace)) <= 4 and limited_by(trace)["slots"] > 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_queue": -1}, "max_queue=-1"), ({"when_full": "panic"}, "when_full='panic' is unknown: choose reject or")],
)
def test_nonsense_is_refused(settings, message):
    stub = engine("iteration")
    with pytest.raises(ValueError, match=message):
        Engine(stub.scheduler, stub.runner, **settings)
    with pytest.raises(ValueError, match=message):
        build_simulated("paged", **settings)
