"""The loop, its clock, its faults and its plan; with a stub in the model's place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub import check_invariants, check_trace, drain, engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.clock import Clock
from minibatcher.measure.metrics import requests as metrics_of

STAGES = ("static", "iteration", "paged", "chunked", "preemptive")


@pytest.mark.parametrize("stage", STAGES)
class TestTheLoop:
    def test_every_request_ends_once_and_its_tokens_are_told_once(self, stage):
        eng = engine(stage)
        served = [request(f"r{i}", prompt=1 + i, max_tokens=1 + i % 4) for i in range(7)]
        eng.add_all(served)
        records = drain(eng)
        for made in served:
            told = [token for record in records for token in record.emitted.get(made.request_id, [])]
            assert told == made.output_token_ids == list(range(10, 10 + made.params.max_tokens))
            ends = [reason for record in records for id, reason in record.finished if id == made.request_id]
            assert ends == ["length"] == [made.finish_reason]

    def test_the_end_token_ends_with_stop_and_stays(self, stage):
        for place in range(4):  # as the first, second, third and last token
            eng = engine(stage)
            eng.runner.token = lambda r, place=place: 1 if len(r.output_token_ids) == place else 10
            made = request("a", max_tokens=4)
            eng.run([made])
            assert made.output_token_ids == [10] * place + [1]
            assert made.finish_reason == "stop"  # even as the max_tokens-th token

    def test_ignore_eos_stop_ids_and_min_tokens(self, stage):
        eng = engine(stage)
        eng.runner.token = lambda r: [1, 1, 9, 9, 1, 10][len(r.output_token_ids)]
        all_six = request("all", max_tokens=6, ignore_eos=True)
        at_nine = request("nine", max_tokens=6, ignore_eos=True, stop_token_ids=[9])
        late = request("late", max_tokens=6, min_tokens=3, stop_token_ids=[9])
        eng.run([all_six, at_nine, late])
        assert (all_six.output_token_ids, all_six.finish_reason) == ([1, 1, 9, 9, 1, 10], "length")
        assert (at_nine.output_token_ids, at_nine.finish_reason) == ([1, 1, 9], "stop")
        assert (late.output_token_ids, late.finish_reason) == ([1, 1, 9, 9], "stop")

    def test_max_model_len_ends_with_length(self, stage):
        eng = engine(stage, max_model_len=10)
        made = request("a", prompt=7, max_tokens=50)
        eng.run([made])
        assert (made.num_tokens, made.finish_reason) == (10, "length")

    def test_on_token_ends_a_request(self, stage):
        eng, seen = engine(stage), []
        made = request("a", max_tokens=9, on_token=lambda token: seen.append(token) or len(seen) == 3)
        eng.run([made, request("b", max_tokens=6)])
        assert (seen, made.finish_reason) == ([10, 11, 12], "stop")

    def test_a_step_without_work_does_nothing(self, stage):
        eng = engine(stage)
        record = eng.step()
        assert not record.work and not record.emitted and not eng.has_work


@pytest.mark.parametrize("stage", STAGES)
class TestArrivals:
    def test_each_is_added_when_the_clock_reaches_its_arrival(self, stage):
        eng = engine(stage)
        trace = eng.run([request("late", arrival=20.0), request("early", arrival=2.5), request("now")])
        first = {id: m.first_scheduled for id, m in metrics_of(trace).items()}
        assert first["now"] == 0.0
        assert first["late"] == 20.0 and eng.clock.waits[-1] == 20.0  # the engine slept until then
        assert first["early"] >= 2.5
        assert [a.time for record in trace for a in record.arrived] == [0.0, 2.5, 20.0]

    def test_a_future_request_can_be_aborted_and_its_id_is_taken(self, stage):
        eng = engine(stage)
        future = request("a", arrival=50.0)
        eng.add(future)
        with pytest.raises(ValueError, match="'a'"):
            eng.add(request("a"))
        assert eng.abort("a")
        drain(eng)
        assert future.finish_reason == "abort" and eng.clock.time == 0.0

    def test_ids_are_given_to_those_without(self, stage):
        eng = engine(stage)
        eng.add(request("0"))
        unnamed = [Request([5]), Request([5]), request("1")]
        eng.add_all(unnamed)
        assert len({"0", *(made.request_id for made in unnamed)}) == 4
        drain(eng)

    def test_a_list_with_a_bad_one_adds_none(self, stage):
        eng = engine(stage)
        for bad in (request("x", prompt=64), request("good1")):
            with pytest.raises(ValueError):
                eng.run([request("good1"), bad])
        assert not eng.has_work


@pytest.mark.parametrize("stage", STAGES)
class TestFaults:
    def test_when_the_model_raises_that_steps_requests_end_and_the_others_go_on(self, stage):
        eng = engine(stage, max_num_seqs=2)

        def fail_once(plan):
            if len(eng.runner.plans) == 2:
                raise RuntimeError("out of memory")

        eng.runner.before = fail_once
        served = [request(name) for name in "abcd"]
        eng.add_all(served)
        records = drain(eng)
        assert [made.finish_reason for made in served] == ["error", "error", "length", "length"]
        assert served[0].error == "RuntimeError: out of memory"
        assert served[0].output_token_ids == [10]  # what came before the fault is kept
        assert records[1].finished == [("a", "error"), ("b", "error")] and not records[1].emitted

    def test_a_row_that_is_not_finite_ends_its_own_request(self, stage):
        eng = engine(stage)
        eng.runner.token = lambda r: None if r.request_id == "b" and len(r.output_token_ids) == 1 else 10
        served = [request(name) for name in "abc"]
        eng.run(served)
        assert [made.finish_reason for made in served] == ["length", "error", "length"]
        assert served[1].output_token_ids == [10] and "not finite" in served[1].error

    def test_on_token_that_raises_ends_its_own_request(self, stage):
        def raises(token):
            raise KeyError("mine")

        eng = engine(stage)
        served = [request("a"), request("b", on_token=raises), request("c")]
        eng.run(served)
        assert [made.finish_reason for made in served] == ["length", "error", "length"]
        assert "KeyError" in served[1].error

    def test_an_interrupt_reaches_the_caller_and_leaves_the_engine_in_order(self, stage):
        eng = engine(stage, max_num_seqs=2)

        def interrupt(plan):
            raise KeyboardInterrupt

        eng.runner.before = interrupt
        served = [request(name) for name in "abc"]
        eng.add_all(served)
        with pytest.raises(KeyboardInterrupt):
            eng.step()
        check_invariants(eng, served)
        eng.runner.before = lambda plan: None
        drain(eng)
        assert [made.finish_reason for made in served] == ["error", "error", "length"]
        assert eng.trace[0].admitted == ["a", "b"] and eng.trace[0].finished == [("a", "error"), ("b", "error")]
        check_trace(eng.trace.records, served)

    def test_a_scheduler_that_schedules_nothing_is_a_bug_and_raises(self, stage):
        eng = engine(stage)
        eng.scheduler.free_lanes = []  # as if a lane had never come back
        eng.add(request("a"))
        with pytest.raises(RuntimeError, match="scheduled nothing"):
            eng.step()


@pytest.mark.parametrize("stage", STAGES)
class TestAbort:
    @pytest.mark.parametrize("after", range(6))
    def test_gives_everything_back_and_emits_nothing_more(self, stage, after):
        """Waiting, in the first step, in the middle, and after the end."""
        eng = engine(stage, max_num_seqs=2)
        served = [request(name, max_tokens=4) for name in "abc"]
        eng.add_all(served)
        for _ in range(after):
            eng.step()
        told = {made: len(made.output_token_ids) for made in served}
        running = {made for made in served if made.finish_reason is None}
        assert {made for made in served if eng.abort(made.request_id)} == running
        check_invariants(eng)
        drain(eng)
        assert {made: len(made.output_token_ids) for made in served} == told
        assert all(made.finish_reason == "abort" for made in running)

    def test_of_nobody_is_false(self, stage):
        eng = engine(stage)
        assert not eng.abort("nobody")
        eng.run([request("a")])
        assert not eng.abort("a")

    def test_from_on_token_of_itself_and_of_a_neighbour(self, stage):
        eng = engine(stage)
        a = request("a", on_token=lambda token: bool(eng.abort("a")) and False)
        b = request("b", on_token=lambda token: bool(eng.abort("c")) and False)
        c = request("c")
        eng.add_all([a, b, c])
        drain(eng)
        assert (a.finish_reason, b.finish_reason, c.finish_reason) == ("abort", "length", "abort")
        assert len(a.output_token_ids) == 1 and not c.output_token_ids


@pytest.mark.parametrize("stage", STAGES)
class TestDeadlines:
    """A step takes a second, so steps begin at 0, 1, 2 ..., and a deadline is looked at when one begins."""

    def test_who_waits_or_runs_beyond_it_ends_with_abort(self, stage):
        eng = engine(stage, max_num_seqs=1)
        running = request("running", max_tokens=50, deadline_s=3.5)
        waiting = request("waiting", deadline_s=2)
        served = [running, waiting, request("after")]
        eng.add_all(served)
        records = drain(eng)
        assert [(record.t0, *record.finished) for record in records if record.finished] == [
            (2.0, ("waiting", "abort")),
            (4.0, ("running", "abort")),
            (7.0, ("after", "length")),  # begins at 4, in the place that came free
        ]
        assert len(running.output_token_ids) == 4 and not waiting.output_token_ids
        check_trace(records, served)

    def test_it_counts_from_the_arrival(self, stage):
        eng = engine(stage)
        served = [request("late", max_tokens=50, arrival=10.25, deadline_s=2.5)]
        eng.run(served)
        assert [(record.t0, record.finished) for record in eng.trace if record.finished] == [
            (13.25, [("late", "abort")])
        ]
        assert eng.clock.waits == [10.25]
        check_trace(eng.trace.records, served)

    def test_who_ends_before_it_is_left_in_peace(self, stage):
        eng = engine(stage)
        served = [request("a", deadline_s=4.5), request("b", arrival=20.0), request("c", arrival=20.0, deadline_s=4.0)]
        trace = eng.run(served)
        assert [made.finish_reason for made in served] == ["length"] * 3
        assert trace[-1].t1 == 24.0, "nobody waits for a deadline once there is no work"


def test_a_deadline_passes_while_a_batch_waits_to_fill():
    eng = engine("static", max_wait_s=30.0)
    served = [request("hasty", deadline_s=7.5), request("patient", arrival=2.0), request("last", arrival=31.5)]
    trace = eng.run(served)
    assert next((record.t0, *record.finished) for record in trace if record.finished) == (7.5, ("hasty", "abort"))
    assert [made.finish_reason for made in served] == ["abort", "length", "length"]
    assert next(record.t0 for record in trace if record.work) == 32.0, "30 seconds after the first who is still there"
    check_trace(trace.records, served)


@pytest.mark.parametrize("stage", STAGES)
@given(data=st.data())
def test_random_traffic_keeps_the_invariants(stage, data):
    """Adds, steps and aborts in any order: everyone ends exactly once, and nothing is lost or kept."""
    eng = engine(
        stage,
        max_num_seqs=data.draw(st.integers(1, 4)),
        num_blocks=data.draw(st.integers(4, 20)),
        max_model_len=16,
        reserve=data.draw(st.sampled_from(["max", "pow2", "max_tokens", "oracle"])),
    )
    served = {}
    for move in data.draw(st.lists(st.sampled_from(["add", "add", "step", "step", "abort"]), max_size=40)):
        if move == "add":
            name = f"r{len(served)}"
            served[name] = request(name, data.draw(st.integers(1, 15)), data.draw(st.integers(1, 20)))
            eng.add(served[name])
        elif move == "abort" and served:
            eng.abort(data.draw(st.sampled_from(sorted(served))))
        elif eng.has_work:
            eng.step()
        check_invariants(eng, served.values())
    drain(eng)
    check_trace(eng.trace.records, served.values())
    for made in served.values():
        if made.finish_reason == "length":
            assert made.num_tokens == min(made.num_prompt_tokens + made.params.max_tokens, 16)


def test_listeners_see_each_record_and_go_along_to_the_next_trace():
    eng, seen = engine("iteration"), []
    eng.trace.listeners.append(seen.append)
    first = eng.run([request("a")])
    second = eng.run([request("b")])
    assert seen == first.records + second.records and len(first) == len(second) == 4


def test_without_a_trace_the_tokens_are_the_same():
    eng = engine("iteration")
    eng.keep_trace = eng.scheduler.tracing = False
    made = request("a")
    assert len(eng.run([made])) == 0
    assert made.output_token_ids == [10, 11, 12, 13]


def test_the_wall_clock_waits():
    clock = Clock()
    clock.wait_until(clock.now() + 0.02)
    assert clock.now() >= 0.02
    clock.wait_until(0)  # the past: at once


def test_meta_says_what_ran(tiny):
    eng = build_engine("iteration", tiny, max_num_seqs=2, reserve="pow2")
    eng.run([Request([5, 6], SamplingParams(max_tokens=2))])
    meta = eng.trace.meta
    assert (meta["stage"], meta["model"], meta["device"], meta["clock"]) == ("iteration", "tiny", "cpu", "wall")
    assert meta["settings"]["reserve"] == "pow2" and meta["settings"]["max_model_len"] == 2048
