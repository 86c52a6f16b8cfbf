"""On a GPU a step's times are the device's own. Here events that only keep time stand in for CUDA's."""

from __future__ import annotations

import pytest
import torch
from stub import engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.model import runner
from minibatcher.model.runner import Stopwatch


class Stream:
    now_ms = 0.0  # on the device's clock


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None
        self.waited = False

    def record(self, stream: Stream) -> None:
        self.at, self.waited = stream.now_ms, False

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: Event) -> float:
        assert end.waited, "an event that has not happened yet has no time"
        return end.at - self.at


@pytest.fixture
def stream(monkeypatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def test_the_stopwatch_reads_the_devices_clock(stream):
    watch = Stopwatch(torch.device("cuda:1"))
    for worked_ms in (12.5, 3.0):  # its events are used again
        stream.now_ms += 100
        watch.start()
        stream.now_ms += worked_ms
        assert watch.stop() == pytest.approx(worked_ms / 1000)


def test_a_cpu_has_no_stopwatch():
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    assert watch.stop() is None


@pytest.mark.parametrize("stage", ["static", "iteration", "preemptive"])
def test_a_step_lies_where_the_device_says(stage):
    eng = engine(stage)
    eng.runner.busy_s = 0.75  # of the second that a step takes
    trace = eng.run([request("a"), request("late", arrival=9.5)])
    assert [(record.t0, record.t1) for record in trace if record.work][:2] == [(0.25, 1.0), (1.25, 2.0)]
    late = next(record for record in trace if record.arrived and record.arrived[0].id == "late")
    assert (late.t0, late.t1) == (9.75, 10.5)


def test_two_clocks_that_disagree_change_no_order():
    eng = engine("iteration")
    eng.runner.busy_s = 1.000001  # longer than the step was by the engine's clock
    trace = eng.run([request("a", max_tokens=3)])
    assert [(record.t0, record.t1) for record in trace] == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


def test_a_step_that_fails_has_the_engines_times():
    eng = engine("iteration")
    eng.runner.busy_s = 0.75

    def fail(plan):
        raise RuntimeError("out of memory")

    eng.runner.before = fail
    trace = eng.run([request("a")])
    assert (trace[0].t0, trace[0].t1) == (0.0, 1.0)


@pytest.mark.parametrize("stage", ["static", "preemptive"])
def test_the_runners_time_what_the_device_does(stage, stream, monkeypatch):
    eng = build_engine(stage, "tiny", max_num_seqs=2, max_model_len=32)
    assert eng.runner.busy_s is None
    eng.runner.stopwatch = Stopwatch(torch.device("cuda:0"))
    module = runner if stage == "preemptive" else __import__("minibatcher.model.padded", fromlist=["sample"])
    sample = module.sample

    def slow(*given):
        stream.now_ms += 1e-3
        return sample(*given)

    monkeypatch.setattr(module, "sample", slow)
    trace = eng.run([Request([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))])
    assert eng.runner.busy_s == pytest.approx(1e-6)
    for record in trace:
        if record.work:
            assert record.t1 - record.t0 == pytest.approx(1e-6)
