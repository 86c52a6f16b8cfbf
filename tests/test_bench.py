"""What `bench` measures, on the tiny model with tiny sizes: that all sides do the same work. Never how fast."""

from __future__ import annotations

import json
import sys
from statistics import median

import pytest
import torch

from minibatcher import cli
from minibatcher.measure import bench, microbench, report, stagebench
from minibatcher.measure.workloads import lognormal
from minibatcher.memory.pool import KVPool
from minibatcher.model.batch import flatten


@pytest.fixture
def jobs(tiny):
    return lognormal(1, tiny.vocab_size, n=6, max_prompt=20, max_output=8)


# -- the workload -----------------------------------------------------------------------------------------------------


def test_the_workload_is_the_one_that_the_table_names():
    everybody = [job for seed in range(50) for job in lognormal(seed, 1000)]
    assert len(everybody) == 50 * 24
    prompts, outputs = [len(job.prompt_token_ids) for job in everybody], [job.output_len for job in everybody]
    assert 22 <= median(prompts) <= 28 and 14 <= median(outputs) <= 18
    assert max(prompts) == 300 and max(outputs) == 128, "the tail is heavy, and cut"
    assert min(prompts) >= 1 and min(outputs) >= 1
    assert all(0 <= token < 1000 for job in everybody for token in job.prompt_token_ids)
    assert lognormal(3, 1000) == lognormal(3, 1000) != lognormal(4, 1000)
    assert max(prompts) + max(outputs) <= bench.MAX_MODEL_LEN


# -- throughput -------------------------------------------------------------------------------------------------------


def test_all_sides_give_the_same_tokens(tiny, jobs):
    reference, _ = bench.serve(tiny, jobs, lanes=6)
    assert [len(tokens) for tokens in reference] == [job.output_len for job in jobs]
    assert bench.serve(tiny, jobs, lanes=2)[0] == reference
    assert bench.generate(tiny, jobs, batch=4)[0] == reference
    tokens, figures = bench.continuous(tiny, jobs, num_blocks=8, max_batch_tokens=64)
    assert tokens == reference, figures
    seconds = bench.output_tokens(jobs) / figures["with start-up"]
    assert seconds == pytest.approx(figures["start-up"] + figures["serving"])
    assert tiny.model.config._attn_implementation == "sdpa", "every side leaves the model as it was"


def test_throughput_measures_what_its_figures_divide(tiny, jobs):
    measured = bench.throughput(tiny, 1, jobs, lanes=6, batch=2, num_blocks=8, max_batch_tokens=64)
    assert set(measured) == {"6 lanes", "2 lanes", "static", "warm", "with start-up", "start-up", "serving", "note"}
    assert all(rate > 0 for name, rate in measured.items() if name != "note")
    assert "2 lanes 6 of 6, generate 6 of 6, continuous batching 6 of 6" in measured["note"]


def test_a_side_that_cannot_run_says_why_and_the_others_go_on(tiny, jobs):
    measured = bench.throughput(tiny, 0, jobs, lanes=6, batch=2, no_such_setting=1)
    assert "no_such_setting" in measured["warm"]
    assert measured["6 lanes"] > 0
    figure = report.Figure("a / b", "6 lanes", "warm", "tokens/s", 1.2)
    result = report.result("throughput", figure, [measured])
    assert result.value is None and result.met is None and "no_such_setting" in result.why_not


def test_lanes_that_do_not_fit_are_not_measured_as_if_they_did(tiny, jobs, monkeypatch):
    monkeypatch.setattr("minibatcher.memory.pool.CPU_POOL_BYTES", 2 * 432 * 1024)  # 1,024 bytes a token: two requests
    with pytest.raises(RuntimeError, match="held only 2 requests at once: 6 lanes"):
        bench.serve(tiny, jobs, lanes=6)


# -- the bare model ---------------------------------------------------------------------------------------------------


def test_the_bare_model_computes_the_engines_tokens(tiny, jobs):
    measured = bench.bare(tiny, 0, jobs, lanes=6, steps=4)
    assert measured["note"] == "Its tokens are the engine's."
    assert measured["engine"] > 0 and measured["bare"] > 0


@torch.inference_mode()
def test_what_is_resident_is_what_the_pool_holds(tiny):
    engine = bench.decoding(tiny, [20, 30], steps=3)
    batch = flatten(engine.scheduler.schedule(), engine.runner.pool.block_size, "cpu")
    gather = engine.runner.attention.prepare(batch)
    resident = bench.Resident(gather)
    for slots in (piece.slots for piece in gather.pieces):
        for own, at_hand in zip(gather.pool.read(1, slots), resident.read(1, slots), strict=True):
            assert torch.equal(own, at_hand) and own.data_ptr() != at_hand.data_ptr()
    before = gather.pool.keys[1].clone()
    resident.write(1, batch.slot_mapping, torch.ones(2, 2, 16), torch.ones(2, 2, 16))
    assert torch.equal(before, gather.pool.keys[1])


def test_decoding_starts_in_the_midst(tiny):
    engine = bench.decoding(tiny, [20, 30], steps=3)
    steps = 0
    while engine.has_work:
        record = engine.step()
        assert sorted(record.emitted) == ["0", "1"]
        steps += 1
    assert steps == 3


def test_decoding_refuses_what_does_not_run_at_once(tiny, monkeypatch):
    monkeypatch.setattr("minibatcher.memory.pool.CPU_POOL_BYTES", 128 * 1024)  # 1,024 bytes a token: 128 tokens
    bench.decoding(tiny, [40, 40], steps=3)
    with pytest.raises(RuntimeError, match="holds only 2 of these 3"):
        bench.decoding(tiny, [40, 40, 40], steps=3)


def test_uneven(tiny):
    measured = bench.uneven(tiny, 0, rows=4, short=10, long=60, steps=2)
    assert measured["uneven"] > 0 and measured["sum"] > 0


# -- memory -----------------------------------------------------------------------------------------------------------


def test_allocations_are_counted_until_they_are_freed():
    pool = torch.ones(1000)
    with bench.Allocations() as allocations:
        pool.add_(1).view(10, 100)  # nothing new
        for _ in range(3):
            torch.ones(250)  # 1,000 bytes, one after the other
        kept = [torch.ones(250) for _ in range(2)]
    assert (allocations.peak, allocations.now) == (2000, 2000)
    del kept
    assert allocations.now == 0


def test_a_step_that_copies_the_pool_is_seen(tiny, monkeypatch):
    measured = bench.memory(tiny, 0)
    assert measured["single"] == measured["doubled"]
    write = KVPool.write
    monkeypatch.setattr(KVPool, "write", lambda self, *a: (self.keys[0].clone(), write(self, *a)))
    measured = bench.memory(tiny, 0)
    assert measured["doubled"] > measured["single"]


# -- between the calls of the model -----------------------------------------------------------------------------------


def test_scheduler_costs():
    comparisons = microbench.comparisons(running=(4, 8), contexts=(20,))
    assert list(comparisons) == ["steady", "changing", "tensors-20"]
    for name, comparison in comparisons.items():
        measured = comparison.measure(0)
        assert {"engine 4", "barest 4", "engine 8", "barest 8"} < set(measured)
        results = [report.result(name, figure, [measured]) for figure in comparison.figures]
        assert [result.figure.bar for result in results[:2]] == [{"steady": 1.6, "changing": 3.5}.get(name, 3)] * 2
        assert all(result.value > 0 for result in results)


def test_requests_come_and_go(monkeypatch):
    """Every lane is taken at every step, and each request ends after its 16 tokens."""
    seen = []
    schedule = microbench.IterationScheduler.schedule

    def watched(self):
        plan = schedule(self)
        seen.append((len(plan.work), len(plan.admitted)))
        return plan

    monkeypatch.setattr(microbench.IterationScheduler, "schedule", watched)
    microbench.schedule_and_commit(32, output=16, steps=40)
    assert seen[0] == (32, 32)
    assert {running for running, _ in seen} == {32}
    assert all(admitted == 2 for _, admitted in seen[2:]), "32 / 16 leave at each step, and as many join"


# -- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "at_most", "met"), [(1.9, False, True), (2.1, False, False), (2.1, True, True), (None, False, None)]
)
def test_a_figure_is_the_median_of_the_rounds_ratios(bar, at_most, met):
    figure = report.Figure("a / b", "a", "b", "s", bar, at_most)
    measured = [{"a": 1.0, "b": 1.0}, {"a": 8.0, "b": 4.0}, {"a": 9.0, "b": 3.0}]
    result = report.result("x", figure, measured)
    assert (result.value, result.rounds, result.over, result.under) == (2.0, [1.0, 2.0, 3.0], 8.0, 3.0)
    assert result.met is met


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["minibatcher", "bench", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0, *capsys.readouterr()
        raise AssertionError("the command line always exits")

    return run


def test_the_command(command, tmp_path):
    file = tmp_path / "new" / "bench.json"
    code, out, _ = command(
        "--model", "tiny", "--only", "memory", "--only", "uneven", "--seeds", "1", "--json", str(file)
    )
    assert code == 0
    for words in ("15 rows at 60, 1 at 1,800", "pool doubled / not", "met", "threads 1", "model tiny", "seeds 1"):
        assert words in out
    found = json.loads(file.read_text())
    assert {"cpu", "cores", "threads", "python", "torch", "transformers", "date"} < set(found["about"])
    assert [result["comparison"] for result in found["results"]] == ["uneven", "uneven", "memory"]
    assert found["results"][2]["value"] == 1.0 and found["results"][2]["met"] is True
    assert len(found["measured"]["memory"]) == 1
    assert found["notes"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheduler", "--only", "nothing"], ["nothing", "steady, changing, tensors-100, tensors-1000"]),
        (["--model", "tiny", "--only", "steady"], ["throughput, bare, bare-600, uneven, memory"]),
        (["--seeds", "0"], ["--seeds", "1"]),
    ],
)
def test_bad_use_ends_with_2_and_says_what_is_allowed(command, arguments, words):
    code, _, err = command(*arguments)
    assert code == 2
    for word in words:
        assert word in err


def test_help(command):
    code, out, _ = command("--help")
    assert code == 0
    for word in ("--only", "--scheduler", "--seeds", "--json", "--threads", "throughput", "minutes"):
        assert word in out


# -- the stages beside each other -------------------------------------------------------------------------------------


def test_blocks_and_ranges_serve_the_same_jobs(tiny, jobs):
    measured = stagebench.blocks_and_ranges(tiny, 1, jobs)
    names = {"iteration", "paged", "iteration, small", "paged, small"}
    assert measured.keys() == names | {"note"} and all(measured[name] > 0 for name in names)


def test_more_run_at_once_on_demand_and_the_price_is_told(tiny):
    measured = stagebench.on_demand(tiny, 0, n=6, prompt=8, ends=6, max_tokens=40, full=40, blocks=9)
    early, late = measured["note"].split("full length: chunked")
    # 9 blocks of 16: a reservation of 48 tokens takes 3, so 3 run at once; a prompt of 8 takes 1, and 1 is kept free
    assert "chunked at most 3 at once, 0 preemptions" in early
    assert "preemptive at most 6 at once, 0 preemptions" in early
    assert "3 at once, 0 preemptions" in late and " 0 preemptions" not in late.split("preemptive")[1]


def test_a_long_prompt_among_streams(tiny):
    paged, large, small = stagebench.chunked(tiny, budgets=(32, 12), streams=3, prompt=100)
    assert paged.gap_tokens == 3 + 100
    assert (large.gap_tokens, small.gap_tokens) == (32, 12)
    assert all(stall.gap_ms > 0 and stall.ttft_s > 0 for stall in (paged, large, small))
