"""Capacity under objectives against what can be computed by hand; and the two commands."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path

import pytest

from minibatcher import STAGES, Trace, cli
from minibatcher.measure.architectures import architecture
from minibatcher.measure.capacity import capacity, limited_by, missed, objectives
from minibatcher.measure.costs import CostModel, roofline
from minibatcher.measure.gpus import gpu
from minibatcher.measure.metrics import summary
from minibatcher.measure.replay import replay
from minibatcher.measure.shapes import Shape, pairs
from minibatcher.measure.simulator import build_fitted, build_simulated, padded_lanes, simulated_requests
from minibatcher.measure.workloads import Job, arrivals, lengths, resampled, synthetic
from minibatcher.views import curves

AZURE = Path(__file__).parents[2] / "shared" / "data" / "AzureLLMInferenceTrace_code.csv"


def steady(rate: float, seed: int, n: int = 60, prompt: str = "100", output: str = "1") -> list[Job]:
    return synthetic(n, arrivals("steady", rate), lengths(prompt), lengths(output), seed)


def one_lane(keep_trace: bool):
    return build_simulated("iteration", max_num_seqs=1, max_model_len=256, keep_trace=keep_trace)


# -- the highest rate -------------------------------------------------------------------------------------------------


def test_one_lane_carries_one_request_per_service_time():
    """Arrivals at equal distances and one lane that takes D for everybody: up to 1/D nobody waits, and above it the
    wait of the last of 60 requests is 60 (D - 1/rate). A TTFT of at most 1.5 D for all is met until that is D/2."""
    service = one_lane(True).runner.costs.step(Shape(100, 1, pairs(100, 100), 100))["seconds"]
    found = capacity(one_lane, steady, {"ttft_p99": 1.5 * service})
    exact = 1 / (service * (1 - 0.5 / 59))
    assert found.rate == pytest.approx(exact, rel=0.025)
    assert found.missed == ["ttft_p99"] and found.low == found.high == found.rates[0] == found.rate
    assert found.figures.ttft.p99 <= 1.5 * service and found.figures.finish_reasons == {"length": 60}


def test_the_confidence_interval_is_students_t():
    """Lengths differ from seed to seed; four of them: mean +- 3.18 s / sqrt(4)."""
    load = partial(steady, n=40, prompt="20..200", output="1..5")
    found = capacity(one_lane, load, {"ttft_p95": 0.05}, seeds=range(4))
    assert len(set(found.rates)) == 4
    average = sum(found.rates) / 4
    deviation = sqrt(sum((rate - average) ** 2 for rate in found.rates) / 3)
    assert found.high - found.rate == pytest.approx(3.18 * deviation / 2) == pytest.approx(found.rate - found.low)


def test_users_and_price():
    found = capacity(one_lane, steady, {"ttft_p99": 0.02})
    figures = replace(found.figures, mean_e2e=2.0, output_tokens_per_s=500.0)
    found = replace(found, rate=3.0, figures=figures)
    assert found.users(think_s=28.0) == 90.0  # 3 a second, each there for 30 s
    assert found.price(1.8) == pytest.approx(1.0)  # 1.8 an hour, 1.8 million tokens an hour


def test_a_faster_gpu_and_a_looser_objective_carry_more():
    def rate(gpu, seconds):
        build = partial(build_simulated, "chunked", gpu, max_num_seqs=32, max_model_len=2048)
        return capacity(
            lambda keep_trace: build(keep_trace=keep_trace),
            lambda rate, seed: synthetic(
                150, arrivals("poisson", rate, seed), lengths("lognormal:300:0.8"), lengths("1..60"), seed
            ),
            {"ttft_p99": seconds},
        ).rate

    assert rate("h100", 1.0) > 2 * rate("a10g", 1.0)
    assert rate("a10g", 4.0) > 1.1 * rate("a10g", 0.7)


def test_what_cannot_be_met_is_refused():
    with pytest.raises(ValueError, match=r"even 0\.0010 requests/s miss ttft_p99=0.0001: loosen it, or take a faster"):
        capacity(one_lane, steady, {"ttft_p99": 1e-4})
    with pytest.raises(ValueError, match="too short to be a load"):
        capacity(one_lane, partial(steady, n=1), {"ttft_p99": 10.0})


def test_a_run_in_which_somebody_is_turned_away_misses():
    build = partial(build_simulated, "iteration", max_num_seqs=1, max_model_len=256, max_queue=0)
    figures = summary(build().run(simulated_requests(steady(1e4, 0))))
    assert missed(figures, {"ttft_p99": 100.0}) == ["finished"]
    found = capacity(lambda keep_trace: build(keep_trace=keep_trace), steady, {"ttft_p99": 100.0})
    assert found.missed == ["finished"] and found.figures.finish_reasons == {"length": 60}


@pytest.mark.parametrize("text", ["ttft_p99", "ttft_p99=", "ttft_p99=-1", "ttft=1", "speed_p50=2", "itl_p99=inf"])
def test_nonsense_objectives_are_refused(text):
    with pytest.raises(ValueError, match="is no objective: write NAME=SECONDS"):
        objectives([text])


def test_objectives():
    assert objectives(["ttft_p99=1.0", "itl_p50=0.05"]) == {"ttft_p99": 1.0, "itl_p50": 0.05}
    with pytest.raises(ValueError, match="without an objective says nothing"):
        objectives([])


# -- what limits it ---------------------------------------------------------------------------------------------------


def shares(stage: str, jobs: list[Job], **settings) -> dict[str, float]:
    engine = build_simulated(stage, max_model_len=2048, **settings)
    return limited_by(engine.run(simulated_requests(jobs)))


@pytest.mark.parametrize(
    ("limit", "stage", "n", "prompt", "output", "settings"),
    [
        ("compute", "chunked", 40, "1500", "2", {"max_num_seqs": 64, "max_num_batched_tokens": 2048}),
        ("bandwidth", "kernel", 16, "20", "300", {"max_num_seqs": 16}),
        ("slots", "kernel", 64, "20", "100", {"max_num_seqs": 4}),
        ("slots", "static", 64, "20", "1..100", {"max_num_seqs": 4}),
        ("KV memory", "preemptive", 64, "100", "300", {"max_num_seqs": 64, "num_blocks": 128}),
    ],
)
def test_what_limits(limit, stage, n, prompt, output, settings):
    found = shares(stage, steady(1e6, 0, n, prompt, output), **settings)
    assert max(found, key=lambda name: found[name]) == limit and found[limit] > 0.6
    assert sum(found.values()) == pytest.approx(1.0)


# -- the ladder -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ladder_on_the_azure_trace():
    """On an L4 the cache is small, and each stage carries more than the one before. (On an H100, paged is as good as
    iteration, and preemptive as chunked: 40 requests of at most 7,841 tokens never fill its 427,000 tokens.)"""
    if not AZURE.exists():
        pytest.skip("the public traces of shared/data are not here")
    traced = replay(AZURE)
    rates = {}
    for stage in STAGES:
        lanes = padded_lanes("l4", "llama-3.1-8b", "bfloat16", 1, 7841) if stage == "static" else 256
        settings = {"max_num_seqs": lanes, "max_model_len": 7841, "max_num_batched_tokens": 2048}
        settings = {name: value for name, value in settings.items() if name != "max_num_batched_tokens"} | (
            {"max_num_batched_tokens": 2048} if "max_num_batched_tokens" in STAGES[stage].uses else {}
        )
        rates[stage] = capacity(
            lambda keep_trace, stage=stage, settings=settings: build_simulated(
                stage, "l4", keep_trace=keep_trace, **settings
            ),
            lambda rate, seed: resampled(traced, 500, arrivals("poisson", rate, seed), seed),
            {"ttft_p99": 10.0, "itl_p99": 1.5},
        ).rate
    assert list(rates.values()) == sorted(rates.values()), rates
    assert rates["preemptive"] > rates["chunked"] and rates["paged"] > 1.2 * rates["iteration"]


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_of_whole_runs(theme, tmp_path):
    jobs = synthetic(60, arrivals("poisson", 30.0, 1), lengths("lognormal:200:1"), lengths("lognormal:30:1"), 1)
    runs = {}
    for name, settings in (("no limit", {}), ("max_queue=2", {"max_queue": 2})):
        engine = build_simulated("preemptive", "l4", "llama-3.2-1b", max_num_seqs=4, max_model_len=4096, **settings)
        runs[name] = engine.run(simulated_requests(jobs))
    over_time = curves.over_time(runs, theme)
    heights = [patch.get_data().values.max() for patch in over_time.axes[1].patches]
    assert heights[0] == summary(runs["no limit"]).max_waiting > heights[1] == 2
    devices = {name: roofline(gpu(name), architecture("llama-3.1-8b")).giving_way for name in ("a100", "h100", "b200")}
    crossover = curves.crossover(devices, decodes=32, budget=512, block_size=16, theme=theme)
    titles = [ax.get_title("left") for ax in crossover.axes]
    assert titles[0].startswith("a100: swap from") and titles[2] == "b200: recompute"
    for figure in (over_time, crossover, curves.workload(jobs, theme=theme)):
        figure.savefig(tmp_path / "picture.png")
    with pytest.raises(ValueError, match="nothing was computed in the trace of 'empty'"):
        curves.over_time({"empty": Trace()})


# -- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `minibatcher ARGUMENTS` in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["minibatcher", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_simulate(run, tmp_path):
    files = {
        name: tmp_path / "new" / f"run.{end}"
        for name, end in (("trace", "jsonl"), ("json", "json"), ("picture", "png"))
    }
    arguments = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    code, out, err = run("simulate", "--rate", "20", "--requests", "50", "--set", "max_num_seqs=8", *arguments)
    assert code == 0, err
    for words in (
        "50 length",
        "TTFT by prompt tokens",
        "ITL by active requests",
        "(Little)",
        "no measurement",
        "llama-3.1-8b on modelled h100",
    ):
        assert words in out
    trace = Trace.load(files["trace"])
    written = json.loads(files["json"].read_text())
    assert written["runs"][0]["summary"]["output_tokens"] == summary(trace).output_tokens
    assert written["workload"]["requests"] == 50 and files["picture"].read_bytes()[:4] == b"\x89PNG"
    assert trace.meta["settings"]["max_num_seqs"] == 8 and trace[0].cost["seconds"] > 0


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("rate=1..8", ["rate", *(f"\n{rate} " for rate in (1, 2, 4, 8))]),
        ("gpu=l4,h100", ["gpu", "l4", "h100"]),
        ("stage=static,preemptive", ["stage", "static", "preemptive"]),
        ("max_num_seqs=4,16", ["max_num_seqs", "4", "16"]),
    ],
)
def test_sweeps(run, tmp_path, sweep, words):
    rate = [] if sweep.startswith("rate") else ["--rate", "5"]
    code, out, err = run("simulate", *rate, "--requests", "20", "--sweep", sweep, "--picture", str(tmp_path / "p.png"))
    assert code == 0, err
    assert all(word in out for word in words) and "TTFT p50" in out and (tmp_path / "p.png").exists()


def test_clients_policies_and_replay(run, tmp_path):
    code, out, _ = run("simulate", "--clients", "4", "--requests", "20", "--output", "5", "--set", "max_num_seqs=2")
    assert code == 0 and "all at once" in out
    table = ["--policies", "--arrivals", "at-once", "--requests", "30", "--set", "num_blocks=900"]
    code, out, _ = run("simulate", *table, "--json", str(tmp_path / "p.json"))
    assert code == 0 and "paged, on demand" in out and "ranges, pow2" in out
    assert len(json.loads((tmp_path / "p.json").read_text())["policies"]) == 11
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    code, out, _ = run("simulate", "--replay", str(tmp_path / "t.csv"))
    assert code == 0 and "1 length" in out
    code, out, _ = run("simulate", "--replay", str(tmp_path / "t.csv"), "--rate", "5", "--requests", "7")
    assert code == 0 and "7 length" in out


def test_step_times_of_a_measured_run(run, tmp_path):
    true = CostModel(token=3e-3, sample=5e-4, weights=60e-3, pair=1e-6, kv=1e-5)
    jobs = synthetic(60, arrivals("poisson", 0.5, 1), lengths("10..150"), lengths("5..90"), 1)
    trace = build_fitted("paged", true, max_num_seqs=16, max_model_len=512).run(simulated_requests(jobs))
    trace.meta["clock"] = "wall"
    trace.save(tmp_path / "real.jsonl")
    code, out, err = run("simulate", "--fit", str(tmp_path / "real.jsonl"), "--rate", "0.3", "--requests", "20")
    assert code == 0, err
    assert "fitted step times" in out and "fitted to a measured run" in out and "(median)" in out


def test_capacity_command(run, tmp_path):
    arguments = ["--slo", "ttft_p99=1.0", "--slo", "itl_p99=0.05", "--requests", "40", "--seeds", "2", "--price", "2.5"]
    files = ["--json", str(tmp_path / "c.json"), "--picture", str(tmp_path / "c.png")]
    code, out, err = run("capacity", "--stage", "all", "--set", "max_num_batched_tokens=2048", *arguments, *files)
    assert code == 0, err
    for words in (*STAGES, "requests/s", "KV memory", "cost/M out", "users", "raise --requests", "no measurement"):
        assert words in out
    found = json.loads((tmp_path / "c.json").read_text())["found"]
    assert list(found) == list(STAGES) and len(found["paged"]["rates"]) == 2 and (tmp_path / "c.png").exists()


BAD_USE = [
    (["simulate"], "--rate is missing"),
    (["simulate", "--rate", "-3"], "rate=-3.0"),
    (["simulate", "--rate", "3", "--gpu", "h9"], "unknown GPU 'h9': choose from t4"),
    (["simulate", "--rate", "3", "--model", "llama-3.1-70b"], "141.1 GB"),
    (["simulate", "--rate", "3", "--set", "lanes=3"], "unknown setting lanes=3"),
    (["simulate", "--rate", "3", "--set", "lanes"], "write NAME=VALUE"),
    (["simulate", "--rate", "3", "--clients", "2"], "exclude each other"),
    (["simulate", "--sweep", "rate=4..1"], "write NAME=FIRST..LAST"),
    (["simulate", "--sweep", "speed=1,2", "--rate", "1"], "write NAME=FIRST..LAST"),
    (["simulate", "--rate", "3", "--arrivals", "replay"], "give one with --replay FILE"),
    (["simulate", "--rate", "3", "--sweep", "gpu=l4", "--trace", "t"], "--trace is for a single run"),
    (["simulate", "--rate", "3", "--policies", "--picture", "p.png"], "--policies prints a table"),
    (["simulate", "--rate", "-3", "--replay", "TRACE", "--arrivals", "replay"], "rate=-3.0 is not allowed"),
    (["simulate", "--replay", "nowhere.csv"], "nowhere.csv"),
    (["capacity", "--slo", "fast=1"], "is no objective"),
    (["capacity", "--slo", "ttft_p99=1", "--stage", "best"], "unknown stage 'best'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_USE)
def test_bad_use_ends_with_2_and_a_sentence(run, tmp_path, arguments, message):
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    arguments = [str(tmp_path / "t.csv") if text == "TRACE" else text for text in arguments]
    code, _, err = run(*arguments)
    assert code == 2 and message in err.replace("\n", " ") and "Traceback" not in err


@pytest.mark.parametrize("command", ["simulate", "capacity"])
def test_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0 and "--gpu" in out and "llama-3.1-8b" in out
    lines = [line for line in out.splitlines() if " --" in line]
    assert all(len(line.strip("│ *").split()) > 2 for line in lines), "an option without an explanation"
