"""`minibatcher simulate` and `minibatcher capacity`: a workload on a GPU that is not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from minibatcher.engine import Engine
from minibatcher.measure import capacity as measure
from minibatcher.measure.costs import CostModel
from minibatcher.measure.gpus import GPUS
from minibatcher.measure.metrics import e2e_by_output, itl_by_active, little, summary, ttft_by_prompt
from minibatcher.measure.policies import policies as compare
from minibatcher.measure.replay import replay as read_trace
from minibatcher.measure.simulator import build_fitted, build_simulated, padded_lanes, simulated_requests
from minibatcher.measure.workloads import (
    ARRIVALS,
    Job,
    arrivals,
    at_rate,
    closed_loop,
    describe,
    lengths,
    resampled,
    synthetic,
)
from minibatcher.stages import DEFAULT_STAGE, DEFAULTS, STAGES, Settings, uses
from minibatcher.trace import StepRecord, Trace
from minibatcher.views import tables

console = Console()
SPLITS = {
    "TTFT by prompt tokens": ttft_by_prompt,
    "ITL by active requests": itl_by_active,
    "E2E by output tokens": e2e_by_output,
}

Gpu = Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")]
Model = Annotated[str, typer.Option(help="A name like llama-3.1-8b, a config.json, or a folder that has one.")]
Dtype = Annotated[str, typer.Option(help="Of weights, keys and values: float16, bfloat16 or float8.")]
Parallel = Annotated[int, typer.Option("--tensor-parallel-size", min=1, help="GPUs that share every layer.")]
Efficiency = Annotated[float, typer.Option(help="Share of the data sheet's peaks that the kernels reach.")]
Fit = Annotated[Path | None, typer.Option(help="A measured trace: its fitted step times, in place of a GPU's.")]
Replay = Annotated[Path | None, typer.Option(help="An Azure, BurstGPT or Mooncake trace to take the requests from.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many requests of that trace.")]
Requests = Annotated[int, typer.Option(min=1, help="How many are drawn: from a trace at a rate, or from lengths.")]
Prompt = Annotated[str, typer.Option(help="Tokens: 512, 100..900 or lognormal:500:1.0 (median, sigma).")]
Output = Annotated[str, typer.Option(help="Tokens, written in the same way.")]
Arrivals = Annotated[str, typer.Option("--arrivals", help=f"{', '.join(ARRIVALS)}; replay: the trace's, stretched.")]
MaxTokens = Annotated[int | None, typer.Option(help="What requests ask for; else the longest output of the workload.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the stage: max_num_seqs=64 ...; may be repeated.")
]
Json = Annotated[Path | None, typer.Option("--json", help="Write all figures there.")]
Picture = Annotated[Path | None, typer.Option(help="Write a picture there (.png, .svg or .pdf).")]


@dataclass(frozen=True)
class Source:
    """Where the requests come from. traced: those of a trace; without it, they are drawn from the two distributions."""

    traced: Sequence[Job] | None
    n: int
    prompt: str
    output: str
    arrivals: str

    def jobs(self, rate: float | None, seed: int) -> list[Job]:
        """The trace as it is when no rate is given; else jobs that arrive at that rate, drawn from the trace if any."""
        if self.arrivals not in (*ARRIVALS, "replay"):
            raise ValueError(f"--arrivals {self.arrivals} is unknown: choose from {', '.join(ARRIVALS)}, replay")
        if self.traced and rate is None:
            return list(self.traced)
        if self.traced and rate is not None and self.arrivals == "replay":
            return at_rate(self.traced, rate)
        if self.arrivals == "replay":
            raise ValueError("--arrivals replay takes the pattern of a trace: give one with --replay FILE")
        if rate is None and self.arrivals != "at-once":
            raise ValueError(
                "--rate is missing, in requests/s (or give --replay FILE, --clients N, --arrivals at-once)"
            )
        times = arrivals(self.arrivals, 1.0 if rate is None else rate, seed)
        if self.traced:
            return resampled(self.traced, self.n, times, seed)
        return synthetic(self.n, times, lengths(self.prompt), lengths(self.output), seed)


@dataclass(frozen=True)
class Machine:
    """What serves them. costs: a fitted cost model in place of the GPU's."""

    gpu: str
    model: str
    dtype: str
    tensor_parallel_size: int
    efficiency: float
    costs: CostModel | None

    def build(self, stage: str, settings: Settings, keep_trace: bool = True) -> Engine:
        if self.costs:
            return build_fitted(stage, self.costs, keep_trace=keep_trace, **settings)
        return build_simulated(
            stage,
            self.gpu,
            self.model,
            dtype=self.dtype,
            tensor_parallel_size=self.tensor_parallel_size,
            efficiency=self.efficiency,
            keep_trace=keep_trace,
            **settings,
        )

    def settings(self, stage: str, given: Settings, jobs: Sequence[Job]) -> Settings:
        """Those of the given ones that the stage uses, and what lets each stage serve the same requests.

        A padded batch (stage 1) gets as many of the lanes as fit in the memory at full length.
        """
        own = with_length({name: value for name, value in given.items() if name in uses(stage)}, jobs)
        if STAGES[stage].allocator is None and not self.costs:
            fit = padded_lanes(self.gpu, self.model, self.dtype, self.tensor_parallel_size, own["max_model_len"])
            own["max_num_seqs"] = min(own.get("max_num_seqs", 16), fit)
        return own


def simulate(
    gpu: Gpu = "h100",
    model: Model = "llama-3.1-8b",
    stage: Annotated[str, typer.Option(help=f"One of {', '.join(STAGES)}.")] = DEFAULT_STAGE,
    rate: Annotated[float | None, typer.Option(help="Requests/s.")] = None,
    replay: Replay = None,
    limit: Limit = None,
    scale_time: Annotated[float, typer.Option(help="0.5 lets the trace arrive twice as fast.")] = 1.0,
    requests: Requests = 1000,
    prompt: Prompt = "lognormal:500:1.0",
    output: Output = "lognormal:100:1.0",
    arrivals: Arrivals = "poisson",
    clients: Annotated[int | None, typer.Option(help="So many clients, each sending when it was answered.")] = None,
    think: Annotated[float, typer.Option(help="Seconds between an answer and the client's next request.")] = 0.0,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which a request ends with abort.")] = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same workload.")] = 0,
    settings: Set = None,
    sweep: Annotated[
        str | None, typer.Option(help="rate=1..32 (doubling) or rate=1,2,5; also clients, gpu, stage, or a setting.")
    ] = None,
    policies: Annotated[
        bool, typer.Option("--policies", help="Compare static and iteration-level, contiguous and paged, each alone.")
    ] = False,
    dtype: Dtype = "bfloat16",
    tensor_parallel_size: Parallel = 1,
    efficiency: Efficiency = 1.0,
    fit: Fit = None,
    trace: Annotated[Path | None, typer.Option(help="Write the engine's trace there, as JSON Lines.")] = None,
    json_file: Json = None,
    picture: Picture = None,
) -> None:
    """Serve a workload on a GPU that is not there, and say how it went."""
    varied, values = parse_sweep(sweep) if sweep else ("stage", [stage])
    by_clients = clients is not None or varied == "clients"
    if trace and (sweep or policies):
        raise ValueError("--trace is for a single run: leave out --sweep and --policies")
    if policies and (sweep or picture):
        raise ValueError("--policies prints a table: leave out --sweep and --picture")
    if by_clients and (rate is not None or varied == "rate"):
        raise ValueError("a rate and clients exclude each other: clients send when they were answered")
    prepare(trace, json_file, picture)
    source = Source(load(replay, limit, scale_time), requests, prompt, output, "at-once" if by_clients else arrivals)
    machine = Machine(gpu, model, dtype, tensor_parallel_size, efficiency, fitted(fit))
    given = parse_settings(settings)
    if policies:
        show_policies(machine, given, source.jobs(rate, seed), max_tokens, json_file)
        return
    runs: dict[str, Trace] = {}
    with progress_bar() as bar:
        for value in values:
            now: dict[str, Any] = {"rate": rate, "clients": clients, "gpu": gpu, "stage": stage, varied: value}
            jobs = source.jobs(now["rate"], seed)
            own = given | ({varied: value} if varied in DEFAULTS else {})
            own = machine.settings(value, own, jobs) if sweep and varied == "stage" else with_length(own, jobs)
            engine = replace(machine, gpu=now["gpu"]).build(now["stage"], own)
            task = bar.add_task(f"{varied}={value}", total=len(jobs))
            engine.trace.listeners.append(partial(advance, bar, task))
            wanted = simulated_requests(jobs, max_tokens, deadline)
            ran = closed_loop(engine, wanted, now["clients"], think) if by_clients else engine.run(wanted)
            runs[str(value)] = ran

    figures = {name: summary(ran) for name, ran in runs.items()}
    title = f"{ran.meta['model']} on {ran.meta['device']}"
    if trace:
        ran.save(trace)
    if json_file:
        write_json(json_file, {"workload": asdict(describe(jobs)), "runs": list(map(to_json, runs.values()))})
    if picture:
        from minibatcher.views import curves

        drawn = curves.sweep(varied, values, list(figures.values()), title) if sweep else curves.over_time(runs)
        drawn.savefig(picture, dpi=150)
    console.print(tables.workload(describe(jobs)))  # of the last run; a sweep changes no more than its rate
    if sweep:
        console.print(tables.sweep(varied, figures))
    else:
        console.print(tables.run(stage, figures[stage]))
        for name, split in SPLITS.items():
            console.print(tables.buckets(name, split(ran)))
        seen, expected = little(ran)
        console.print(
            f"In the system on average: {seen:.3f} requests; arrivals/s x time in it: {expected:.3f} (Little)."
        )
    console.print(f"{title}. Step times: {costs_of(ran).trust}.")


def show_policies(
    machine: Machine, given: Settings, jobs: Sequence[Job], max_tokens: int | None, json_file: Path | None
) -> None:
    """The table of the vLLM paper's memory policies, on this machine's pool and step times."""
    meta = machine.build("kernel", with_length(given, jobs)).trace.meta
    pool = {name: meta["settings"][name] for name in ("num_blocks", "block_size", "max_model_len", "max_num_seqs")}
    found = list(compare(CostModel(**meta["costs"]), jobs, **pool, max_tokens=max_tokens))
    if json_file:
        write_json(json_file, {"workload": asdict(describe(jobs)), "meta": meta, "policies": list(map(asdict, found))})
    console.print(tables.workload(describe(jobs)))
    console.print(tables.policies(found))


def capacity(
    slo: Annotated[list[str], typer.Option(help="An objective, NAME=SECONDS: ttft_p99=1.0, itl_p99=0.05 ...")],
    gpu: Gpu = "h100",
    model: Model = "llama-3.1-8b",
    stage: Annotated[str, typer.Option(help=f"One of {', '.join(STAGES)}, or all.")] = DEFAULT_STAGE,
    replay: Replay = None,
    limit: Limit = None,
    requests: Requests = 1000,
    prompt: Prompt = "lognormal:500:1.0",
    output: Output = "lognormal:100:1.0",
    arrivals: Arrivals = "poisson",
    max_tokens: MaxTokens = None,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads that are drawn; the confidence comes from them.")] = 3,
    think: Annotated[float, typer.Option(help="Seconds between an answer and a user's next request.")] = 30.0,
    price: Annotated[float | None, typer.Option(help="Of the whole machine per hour, in any currency.")] = None,
    settings: Set = None,
    dtype: Dtype = "bfloat16",
    tensor_parallel_size: Parallel = 1,
    efficiency: Efficiency = 1.0,
    fit: Fit = None,
    json_file: Json = None,
    picture: Picture = None,
) -> None:
    """The highest rate at which all objectives are met, what limits it, and what it costs.

    With --stage all, a setting goes to the stages that use it, and static batches get as many lanes as fit.
    """
    prepare(json_file, picture)
    limits, given = measure.objectives(slo), parse_settings(settings)
    source = Source(load(replay, limit), requests, prompt, output, arrivals)
    machine = Machine(gpu, model, dtype, tensor_parallel_size, efficiency, fitted(fit))
    jobs = [job for seed in range(seeds) for job in source.jobs(1.0, seed)]
    found: dict[str, measure.Capacity] = {}
    with console.status("") as status:
        for name in STAGES if stage == "all" else [stage]:
            own = machine.settings(name, given, jobs) if stage == "all" else with_length(given, jobs)
            engine = machine.build(name, own)

            def tell(seed: int, rate: float, name: str = name) -> None:
                status.update(f"{name}, seed {seed}: {rate:.3g} requests/s")

            build = partial(machine.build, name, own)
            found[name] = measure.capacity(build, source.jobs, limits, range(seeds), max_tokens, tell)
    meta = engine.trace.meta
    title = f"{meta['model']} on {meta['device']}: {', '.join(slo)}"
    if json_file:
        write_json(json_file, {"title": title, "found": {name: asdict(one) for name, one in found.items()}})
    if picture:
        from minibatcher.views import curves

        curves.ladder(found, title).savefig(picture, dpi=150)
    console.print(tables.workload(describe(jobs), timed=False))
    console.print(tables.capacities(title, found, think, price))
    for name, one in found.items():
        if one.figures.seconds < 10 * (one.figures.mean_e2e or 0.0):
            console.print(f"{name}: the run lasts less than ten answers, so its end weighs much; raise --requests.")
    console.print(f"{seeds} seeds of {len(jobs) // seeds:,} requests. Step times: {costs_of(engine.trace).trust}.")


# -- what the user wrote ----------------------------------------------------------------------------------------------


def load(path: Path | None, limit: int | None, scale_time: float = 1.0) -> list[Job] | None:
    return read_trace(path, limit, scale_time) if path else None


def parse_settings(texts: Sequence[str] | None) -> Settings:
    """`max_num_seqs=64` and so on; the stage checks names and values."""
    given = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text!r}: write NAME=VALUE, for example max_num_seqs=64")
        given[name] = parse_value(value)
    return given


def parse_value(text: str) -> Any:
    """A whole number, a number, none, or else a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text.lower() == "none" else text


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """`rate=1..32` doubles from the first to the last; `gpu=l4,h100` takes those."""
    name, _, rest = text.partition("=")
    allowed = ("rate", "clients", "gpu", "stage", *DEFAULTS)
    values = [parse_value(value) for value in rest.split(",")]
    if ".." in rest:
        first, last = (parse_value(value) for value in rest.split("..", 1))
        numbers = isinstance(first, int | float) and isinstance(last, int | float) and 0 < first <= last
        values = [first]
        while numbers and values[-1] * 2 <= last:
            values.append(values[-1] * 2)
        if not numbers:
            values = []
    if name not in allowed or not values or "" in values:
        raise ValueError(
            f"--sweep {text!r}: write NAME=FIRST..LAST (doubling) or NAME=A,B,C, with one of {', '.join(allowed)}"
        )
    return name, values


def with_length(given: Settings, jobs: Sequence[Job]) -> Settings:
    """max_model_len, unless it was given: what the longest request needs."""
    return {"max_model_len": max(2, describe(jobs).longest), **given}


def fitted(path: Path | None) -> CostModel | None:
    return CostModel.fit(Trace.load(path)) if path else None


def costs_of(trace: Trace) -> CostModel:
    return CostModel(**trace.meta["costs"])


def to_json(trace: Trace) -> dict[str, Any]:
    split = {name: [asdict(bucket) for bucket in function(trace)] for name, function in SPLITS.items()}
    return {"meta": trace.meta, "summary": asdict(summary(trace)), **split, "trust": costs_of(trace).trust}


def progress_bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests")
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def advance(bar: Progress, task: TaskID, record: StepRecord) -> None:
    bar.advance(task, len(record.finished))


def prepare(*paths: Path | None) -> None:
    """Make the folders now, and not after minutes, should that be impossible."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
