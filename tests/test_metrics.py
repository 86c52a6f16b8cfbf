"""Metrics of small traces, with numbers computed by hand."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibatcher.measure.metrics import Percentiles, goodput, percentile, requests, span, summary
from minibatcher.trace import Arrival, StepRecord, Trace, Waiting, Work


def static_trace() -> Trace:
    """Two lanes, static. a and b form a batch; c arrives meanwhile and must wait until b has finished.

    step     0 (1.0-2.0 s)      1 (2.0-2.5)   2 (2.5-3.0)    3 (3.0-4.0)
    lane 0   a: prompt of 3     a: decode     a: finished    c: prompt of 4
    lane 1   b: 2 padding + 1   b: decode     b: decode
    """
    return Trace(
        {"stage": "static", "model": "tiny"},
        [
            StepRecord(
                0,
                t0=1.0,
                t1=2.0,
                arrived=[Arrival("a", 0.0, 3, 2), Arrival("b", 0.5, 1, 9)],
                admitted=["a", "b"],
                work=[Work("a", 0, "prefill", 3, 3), Work("b", 1, "prefill", 1, 1), Work("b", 1, "wasted", 2, 1)],
                emitted={"a": [7], "b": [7]},
            ),
            StepRecord(
                1,
                t0=2.0,
                t1=2.5,
                arrived=[Arrival("c", 1.5, 4, 1)],
                work=[Work("a", 0, "decode", 1, 4), Work("b", 1, "decode", 1, 2)],
                emitted={"a": [7], "b": [7]},
                finished=[("a", "length")],
                waiting=Waiting("c", "the batch has 2 of 2 requests to finish", 0),
            ),
            StepRecord(
                2,
                t0=2.5,
                t1=3.0,
                work=[Work("b", 1, "decode", 1, 3), Work("a", 0, "wasted", 1, 4)],
                emitted={"b": [2]},
                finished=[("b", "stop")],
                waiting=Waiting("c", "the batch has 1 of 2 requests to finish", 0),
            ),
            StepRecord(
                3,
                t0=3.0,
                t1=4.0,
                admitted=["c"],
                work=[Work("c", 0, "prefill", 4, 4)],
                emitted={"c": [7]},
                finished=[("c", "length")],
            ),
        ],
    )


def test_times_of_each_request():
    found = requests(static_trace())
    assert list(found) == ["a", "b", "c"]
    a, b, c = found.values()
    # Tokens come at the end of their steps: a at 2.0 and 2.5, b at 2.0, 2.5 and 3.0, c at 4.0.
    assert (a.arrival, a.first_scheduled, a.first_token, a.last_token, a.finished) == (0.0, 1.0, 2.0, 2.5, 2.5)
    assert (b.arrival, b.first_scheduled, b.first_token, b.last_token, b.finished) == (0.5, 1.0, 2.0, 3.0, 3.0)
    assert [(r.queue, r.ttft, r.tpot, r.e2e) for r in (a, b, c)] == [
        (1.0, 2.0, 0.5, 2.5),  # 1 - 0; 2 - 0; (2.5 - 2) / 1; 2.5 - 0
        (0.5, 1.5, 0.5, 2.5),  # 1 - 0.5; 2 - 0.5; (3 - 2) / 2; 3 - 0.5
        (1.5, 2.5, None, 2.5),  # 3 - 1.5; 4 - 1.5; one token has no gap; 4 - 1.5
    ]
    assert [r.itls for r in (a, b, c)] == [[0.5], [0.5, 0.5], []]
    assert [(r.prompt_tokens, r.output_tokens, r.finish_reason) for r in (a, b, c)] == [
        (3, 2, "length"),
        (1, 3, "stop"),
        (4, 1, "length"),
    ]


def test_summary_of_a_static_batch():
    s = summary(static_trace())
    assert (s.seconds, s.steps, s.requests) == (4.0, 4, 3)  # from the arrival of a at 0 to 4
    assert s.finish_reasons == {"length": 2, "stop": 1}
    assert (s.output_tokens, s.output_tokens_per_s) == (6, 1.5)
    assert s.scheduled_tokens_per_step == 11 / 4  # 3 + 1, 1 + 1, 1, 4
    # Lanes that compute: 2, 2, 2, 1. Of use: 2, 2, 1, 1, for padding before b's prompt is part of b's prefill.
    assert (s.useful_row_steps, s.wasted_row_steps) == (6, 1)
    assert (s.mean_lanes_busy, s.mean_lanes_useful) == (7 / 4, 6 / 4)
    assert s.wasted_row_share == 3 / 14  # by rows of the model the padding counts: (2 + 1) of (11 + 3)
    assert (s.mean_running, s.max_running) == (6 / 4, 2)  # 2, 2, 1, 1
    assert (s.mean_waiting, s.max_waiting) == (2 / 4, 1)  # 0, 1, 1, 0
    # TTFT 1.5, 2, 2.5: the 95th percentile has rank 0.95 x 2 = 1.9, so 2 + 0.9 x 0.5; the 99th 1.98.
    assert (s.ttft.p50, s.ttft.p95, s.ttft.p99) == pytest.approx((2.0, 2.45, 2.49))
    assert s.itl == s.tpot == Percentiles(0.5, 0.5, 0.5)
    assert s.e2e == Percentiles(2.5, 2.5, 2.5)
    assert s.queue.p50 == 1.0
    assert (s.kv_used_share, s.kv_reserved_share) == (None, None)


def test_summary_as_json():
    data = json.loads(json.dumps(summary(static_trace()).to_dict()))
    assert data["ttft"]["p50"] == 2.0
    assert data["finish_reasons"] == {"length": 2, "stop": 1}
    assert data["kv_used_share"] is None


def test_shares_of_the_pool():
    decode = [Work("a", 0, "decode", 1, 9)]
    kv = [
        {"used": 9, "total": 64, "reserved": 3, "internal": 4, "external": 16},
        {"used": 23, "total": 64, "reserved": 0, "internal": 1, "external": 0},
    ]
    trace = Trace({}, [StepRecord(i, i, i + 1, work=decode, kv=figures) for i, figures in enumerate(kv)])
    trace.append(StepRecord(2, 2, 3))  # nothing computed: it counts in no mean
    s = summary(trace)
    assert s.kv_used_share == (9 + 23) / 2 / 64
    assert s.kv_reserved_share == (3 + 4 + 0 + 1) / 2 / 64  # owned and empty; external belongs to nobody


def test_empty_trace():
    s = summary(Trace())
    assert (s.seconds, s.steps, s.requests, s.output_tokens, s.output_tokens_per_s) == (0, 0, 0, 0, 0)
    assert s.ttft == Percentiles(None, None, None)
    assert s.wasted_row_share == s.mean_lanes_busy == s.mean_waiting == s.max_running == 0
    assert (requests(Trace()), span(Trace()), goodput(Trace())) == ({}, (0.0, 0.0), 0.0)


def test_trace_that_begins_in_the_middle():
    whole = static_trace()
    trace = Trace({}, whole.records[1:])  # 2.0 s on: a and b arrived before
    a, b, c = (requests(trace)[id] for id in "abc")
    assert (a.arrival, a.prompt_tokens, a.ttft, a.queue, a.e2e) == (None, None, None, None, None)
    assert (b.itls, b.tpot) == ([0.5], 0.5)  # of the tokens at 2.5 and 3.0
    assert c.ttft == 2.5
    s = summary(trace)
    assert s.seconds == 4.0 - 1.5  # c arrived before the first of these steps
    assert s.ttft == Percentiles(2.5, 2.5, 2.5)
    assert (s.requests, s.output_tokens, s.max_running) == (3, 4, 2)
    assert goodput(trace, ttft=9.0) == 1 / 2.5  # a's and b's TTFT are not known
    assert goodput(trace, tpot=9.0) == 3 / 2.5


def test_requests_that_have_not_finished():
    trace = Trace({}, static_trace().records[:2])
    b, c = requests(trace)["b"], requests(trace)["c"]
    assert (b.finished, b.finish_reason, b.e2e, b.ttft) == (None, None, None, 1.5)
    assert (c.first_scheduled, c.queue, c.ttft, c.output_tokens) == (None, None, None, 0)
    s = summary(trace)
    assert (s.requests, s.finish_reasons, s.output_tokens) == (3, {"length": 1}, 4)
    assert goodput(trace) == 1 / 2.5


def test_request_aborted_before_its_first_token():
    arrived = [Arrival("a", 0.0, 3, 2), Arrival("b", 9.0, 3, 2)]  # b is taken back before it is due
    trace = Trace({}, [StepRecord(0, 1.0, 1.0, arrived=arrived, finished=[("a", "abort"), ("b", "abort")])])
    for request in requests(trace).values():
        assert request.finish_reason == "abort"
        assert request.finished == 1.0
        assert (request.queue, request.ttft, request.tpot, request.e2e) == (None, None, None, None)
    assert summary(trace).finish_reasons == {"abort": 2}
    assert (summary(trace).steps, goodput(trace)) == (0, 0.0)


def test_request_aborted_between_two_steps_runs_no_more():
    decode = {id: Work(id, lane, "decode", 1, 4) for lane, id in enumerate("ab")}
    trace = Trace(
        {},
        [
            StepRecord(0, 0, 1, work=list(decode.values()), emitted={"a": [1], "b": [1]}),
            StepRecord(1, 1, 2, work=[decode["b"]], emitted={"b": [1]}, finished=[("a", "abort")]),
            StepRecord(2, 2, 3, work=[decode["b"]], emitted={"b": [1]}, finished=[("b", "stop")]),
        ],
    )
    assert summary(trace).mean_running == 4 / 3  # 2, 1, 1
    assert summary(trace).max_running == 2


def test_running_counts_a_request_that_gets_no_tokens_in_a_step():
    first = [Work("a", 0, "decode", 1, 4), Work("b", 1, "prefill", 4, 4)]
    trace = Trace({}, [StepRecord(0, 0, 1, work=first), StepRecord(1, 1, 2, work=first[:1])])
    assert summary(trace).mean_running == 2
    assert summary(trace).mean_lanes_busy == 1.5


def test_several_tokens_in_one_step():
    work = [Work("a", 0, "decode", 3, 9)]
    records = [StepRecord(i, i, i + 1.0, work=work, emitted={"a": tokens}) for i, tokens in enumerate([[1], [2, 3, 4]])]
    a = requests(Trace({}, records))["a"]
    assert a.itls == [1.0, 0.0, 0.0]  # tokens at 1, 2, 2, 2
    assert a.tpot == 1 / 3
    assert summary(Trace({}, records)).output_tokens == 4


def test_id_that_arrives_again():
    records = static_trace().records
    records[3].arrived.append(Arrival("a", 2.75, 5, 1))
    trace = Trace({}, records)
    assert (requests(trace)["a"].arrival, requests(trace)["a"].output_tokens) == (2.75, 0)
    assert summary(trace).output_tokens == 6  # the first use's tokens were put out all the same


def test_goodput():
    trace = static_trace()  # 4 s; TTFT 2, 1.5, 2.5; TPOT 0.5, 0.5, none; E2E 2.5 each
    assert goodput(trace) == 3 / 4
    assert goodput(trace, ttft=2.0) == 2 / 4  # a limit is met by what equals it
    assert goodput(trace, ttft=2.0, e2e=2.4) == 0
    assert goodput(trace, tpot=0.4) == goodput(trace, itl=0.4) == 1 / 4  # c has no gap
    trace[3].finished[0] = ("c", "error")
    assert goodput(trace) == 2 / 4


def test_goodput_by_itl_sees_a_stall_that_tpot_averages_away():
    work = [Work("a", 0, "decode", 1, 9)]
    ends = [1, 2, 3, 4, 9, 10]  # gaps 1, 1, 1, 5, 1: mean 1.8, and a p99 of 4.84 forgives a part of the 5
    records = [StepRecord(i, end - 1, end, work=work, emitted={"a": [1]}) for i, end in enumerate(ends)]
    records[-1].finished.append(("a", "stop"))
    trace = Trace({}, records)
    assert goodput(trace, tpot=2.0) == 1 / 10
    assert goodput(trace, itl=2.0) == 0
    assert goodput(trace, itl=4.9) == 0 and goodput(trace, itl=5.0) == 1 / 10


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values, q):
    assert math.isclose(percentile(values, q), np.percentile(values, q), rel_tol=1e-9, abs_tol=1e-9)


def test_percentile_of_nothing():
    assert percentile([], 50) is None
    assert Percentiles.of([None]) == Percentiles(None, None, None)
    assert Percentiles.of([None, 3.0, None, 1.0]).p50 == 2.0
