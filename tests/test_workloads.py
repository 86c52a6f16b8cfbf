"""Workloads: what is drawn, what is replayed, what is refused, and clients that wait for their answers."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev

import pytest
from stub import engine, request

from minibatcher.measure.replay import replay
from minibatcher.measure.workloads import (
    ARRIVALS,
    Job,
    arrivals,
    at_rate,
    closed_loop,
    describe,
    lengths,
    lognormal,
    resampled,
    synthetic,
)

AZURE = Path(__file__).parents[2] / "shared" / "data" / "AzureLLMInferenceTrace_code.csv"


# -- arrivals and lengths ---------------------------------------------------------------------------------------------


def test_poisson_arrivals_have_the_rate_and_gaps_as_scattered_as_their_mean():
    times = list(islice(arrivals("poisson", 4.0, seed=1), 20_000))
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 0.0 and mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(1.0, rel=0.03)


def test_steady_burst_and_at_once():
    assert list(islice(arrivals("steady", 4.0), 4)) == [0.0, 0.25, 0.5, 0.75]
    assert list(islice(arrivals("at-once", 4.0), 3)) == [0.0, 0.0, 0.0]
    times = list(islice(arrivals("burst", 4.0, burst=5), 20_000))
    assert all(len(set(times[i : i + 5])) == 1 for i in range(0, len(times), 5))
    assert len(times) / times[-1] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_same_seed_draws_the_same(kind):
    one, same, other = (list(islice(arrivals(kind, 2.0, seed), 50)) for seed in (1, 1, 2))
    assert one == same and (one != other or kind in ("steady", "at-once"))


def test_another_rate_only_stretches_the_times():
    """What the bisection of `capacity` relies on: the same seed is the same traffic, closer or farther apart."""
    slow, fast = (list(islice(arrivals("poisson", rate, 3), 50)) for rate in (1.0, 4.0))
    assert slow == pytest.approx([4 * time for time in fast])


@pytest.mark.parametrize(
    ("text", "low", "middle", "high"), [("7", 7, 7, 7), ("3..9", 3, 6, 9), ("lognormal:100:0.5", 1, 100, 10**4)]
)
def test_lengths(text, low, middle, high):
    draw = Random(0)
    drawn = [lengths(text)(draw) for _ in range(4000)]
    assert low <= min(drawn) and max(drawn) <= high and median(drawn) == pytest.approx(middle, rel=0.05)
    if ".." in text:
        assert set(drawn) == set(range(low, high + 1))


def test_one_lognormal_length_in_six_is_a_sigma_above_the_median():
    draw = Random(1)
    drawn = [lengths("lognormal:200")(draw) for _ in range(10_000)]
    assert mean(length > 200 * 2.718 for length in drawn) == pytest.approx(1 / 6.3, abs=0.01)


NO_LENGTHS = ["", "x", "0", "-3", "1.5", "9..3", "0..4", "3..", "lognormal", "lognormal:0", "lognormal:inf"]


@pytest.mark.parametrize("text", [*NO_LENGTHS, "lognormal:5:9", "lognormal:5:1:2"])
def test_nonsense_lengths_are_refused(text):
    with pytest.raises(ValueError, match="no distribution of lengths"):
        lengths(text)


@pytest.mark.parametrize(
    ("kind", "rate", "message"),
    [
        ("poisson", -1.0, "rate=-1.0"),
        ("steady", 0.0, "above 0"),
        ("poisson", float("nan"), "rate=nan"),
        ("tide", 1.0, "unknown arrivals 'tide': choose from poisson"),
    ],
)
def test_nonsense_arrivals_are_refused(kind, rate, message):
    with pytest.raises(ValueError, match=message):
        arrivals(kind, rate)


def test_drawing_again_keeps_prompt_and_answer_together():
    jobs = [Job(range(n), 10 * n) for n in range(1, 50)]
    again = resampled(jobs, 500, arrivals("poisson", 2.0), seed=4)
    assert len(again) == 500 and all(job.output_len == 10 * len(job.prompt_token_ids) for job in again)
    assert again == resampled(jobs, 500, arrivals("poisson", 2.0), seed=4)
    with pytest.raises(ValueError, match="no jobs to draw from"):
        resampled([], 5, arrivals("poisson", 2.0))


def test_the_jobs_of_the_benchmark():
    jobs = lognormal(seed=5, vocab_size=50)
    assert jobs == lognormal(seed=5, vocab_size=50) != lognormal(seed=6, vocab_size=50)
    assert all(0 <= min(job.prompt_token_ids) <= max(job.prompt_token_ids) < 50 for job in jobs)


# -- a workload in numbers --------------------------------------------------------------------------------------------


def test_a_description_by_hand():
    about = describe([Job(range(10), 1, 0.0), Job(range(30), 3, 1.0), Job(range(20), 90, 4.0)])
    assert (about.requests, about.seconds, about.rate) == (3, 4.0, 0.5)
    assert about.burstiness == pytest.approx(1.0 / 2.0)  # gaps of 1 and 3 s: deviation 1, mean 2
    assert (about.prompt_tokens, about.output_tokens, about.longest) == (60, 94, 110)
    assert (about.prompt.p50, about.output.p50) == (20, 3)
    assert describe([Job(range(1), 1)] * 3).rate == 0.0
    with pytest.raises(ValueError, match="empty"):
        describe([])


def test_a_rate_stretches_the_pattern():
    jobs = [Job(range(1), 1, time) for time in (0.0, 1.0, 4.0)]
    assert [job.arrival for job in at_rate(jobs, 5.0)] == pytest.approx([0.0, 0.1, 0.4])
    with pytest.raises(ValueError, match="rate=-1"):
        at_rate(jobs, -1)
    with pytest.raises(ValueError, match="at one moment"):
        at_rate([jobs[0]] * 2, 1.0)


# -- clients ----------------------------------------------------------------------------------------------------------


def test_clients_send_when_they_were_answered():
    eng = engine("iteration", max_num_seqs=8)
    inside = []
    eng.trace.listeners.append(lambda record: inside.append(len(record.work)))
    trace = closed_loop(eng, [request(str(i), max_tokens=1 + i % 3) for i in range(20)], clients=3)
    assert len([id for record in trace for id, _ in record.finished]) == 20
    assert max(inside) == 3 and inside[0] == 3
    arrived = [arrival for record in trace for arrival in record.arrived]
    ends = {id: record.t1 for record in trace for id, _ in record.finished}
    assert all(any(arrival.time == end for end in ends.values()) for arrival in arrived[3:])


def test_clients_think():
    trace = closed_loop(engine("iteration"), [request(str(i), max_tokens=2) for i in range(4)], clients=1, think_s=10.0)
    assert [arrival.time for record in trace for arrival in record.arrived] == [0.0, 12.0, 24.0, 36.0]
    with pytest.raises(ValueError, match="clients=0"):
        closed_loop(engine("iteration"), [], clients=0)


# -- public traces ----------------------------------------------------------------------------------------------------

SAMPLES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,110,27\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,4808,10,4818,Conversation log\n6,GPT-4,7,0,7,API log\n6.5,GPT-4,110,27,137,API log\n",
    "mooncake": '{"timestamp": 1000, "input_length": 4808, "output_length": 10, "hash_ids": [0, 1]}\n'
    '{"timestamp": 2500, "input_length": 110, "output_length": 27, "hash_ids": [0]}\n',
}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format(name, tmp_path):
    (tmp_path / "trace").write_text(SAMPLES[name])
    jobs = replay(tmp_path / "trace")  # BurstGPT's second request failed: it has no answer
    assert jobs == [Job(range(4808), 10, 0.0), Job(range(110), 27, pytest.approx(1.5))]
    assert replay(tmp_path / "trace", limit=1) == jobs[:1]
    assert replay(tmp_path / "trace", scale_time=0.5)[1].arrival == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no request in this trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "there is no request"),
        ("a,b\n1,2\n", "line 2: unknown format with the columns a, b; Azure, BurstGPT and Mooncake"),
        (SAMPLES["azure"] + "2023-11-16 18:17:06,many,3\n", "line 4: not a row.*many"),
        (SAMPLES["azure"] + "2023-11-16 18:17:06,5\n", "line 4: not a row"),
        (SAMPLES["azure"] + "yesterday,5,3\n", "line 4: not a row.*yesterday"),
        (SAMPLES["azure"] + "2023-11-16 18:17:06,0,3\n", "line 4: .*1 token or more"),
        (SAMPLES["burstgpt"] + "7,GPT-4,8,-1,7,API log\n", "line 5: "),
        (SAMPLES["mooncake"] + "{broken\n", "line 3: not JSON"),
        (SAMPLES["mooncake"] + "[1]\n", "line 3: not a JSON object"),
        (SAMPLES["mooncake"] + '{"timestamp": 1, "input_length": 3}\n', "line 3: not a row.*output_length"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text, message, tmp_path):
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ValueError, match=message):
        replay(tmp_path / "trace")


def test_nonsense_limits_are_refused(tmp_path):
    for arguments in ({"limit": 0}, {"scale_time": 0.0}, {"scale_time": -1.0}):
        with pytest.raises(ValueError, match="limit=.*scale_time="):
            replay(tmp_path / "trace", **arguments)


def test_the_azure_trace():
    if not AZURE.exists():
        pytest.skip("the public traces of shared/data are not here")
    jobs = replay(AZURE)
    about = describe(jobs)
    # counted with awk: awk -F, 'NR>1{p+=$2;o+=$3}END{print NR-1,p,o}'
    assert (about.requests, about.prompt_tokens, about.output_tokens) == (8819, 18_059_974, 245_896)
    assert jobs[0] == Job(range(4808), 10, 0.0) and jobs[1].arrival == pytest.approx(0.052, abs=1e-6)
    assert about.longest == 7841 and about.burstiness > 5  # a code assistant is used in bursts


def test_a_synthetic_workload_is_seeded():
    one, same, other = (
        synthetic(50, arrivals("poisson", 1.0, seed), lengths("1..99"), lengths("1..9"), seed) for seed in (1, 1, 2)
    )
    assert one == same != other and len(one) == 50
