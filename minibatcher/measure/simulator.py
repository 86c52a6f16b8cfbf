"""A modelled GPU: the same engine, schedulers and allocators; only the runner and the clock are others.

Nothing is computed. A step advances a virtual clock by what the cost model says, and every request gets tokens until
it has as many as its `output_len` says. So an H100 that serves an 8B model is a laptop program of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from minibatcher.clock import Clock
from minibatcher.engine import Engine
from minibatcher.measure.architectures import Architecture, architecture
from minibatcher.measure.costs import OVERHEAD_S, CostModel, roofline, token_bytes
from minibatcher.measure.gpus import BYTES, GB, GPU
from minibatcher.measure.gpus import gpu as find_gpu
from minibatcher.measure.shapes import planned, rectangle
from minibatcher.measure.workloads import Job
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import QUEUE, STAGES, Settings, Stage, fill_in, make_scheduler, settings_for

TOKEN = 0  # what every request gets


class VirtualClock(Clock):
    """Seconds that pass only when somebody says so."""

    kind = "virtual"

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, t: float) -> None:
        self.time = max(self.time, t)


class SimulatedRunner:
    """The interface of the real runners. cost: the terms of the last step, for its record."""

    def __init__(self, costs: CostModel, clock: VirtualClock) -> None:
        self.costs = costs
        self.clock = clock
        self.cost: dict[str, float] = {}
        self.columns = 0  # of the padded batch so far (stage 1)

    def execute(self, plan: Plan) -> dict[Request, int | None]:
        if plan.rectangle is None:
            shape = planned(plan)
        else:
            width = max(plan.work.values())
            self.columns = width + (0 if plan.admitted else self.columns)
            shape = rectangle(len(plan.rectangle), width, self.columns)
        self.cost = self.costs.step(shape)
        self.clock.time += self.cost["seconds"]
        return {r: TOKEN for r, n in plan.work.items() if r.num_computed + n == len(r.token_ids)}


def build_simulated(
    stage: str,
    gpu: str = "h100",
    model: str = "llama-3.1-8b",
    *,
    dtype: str = "bfloat16",
    tensor_parallel_size: int = 1,
    efficiency: float = 1.0,
    overhead_s: float = OVERHEAD_S,
    keep_trace: bool = True,
    **settings: Any,
) -> Engine:
    """`build_engine` on a modelled GPU. The pool is what the weights leave of the GPU's memory.

    gpu: of the table in gpus.py. model: as `architecture` takes it. dtype, tensor_parallel_size, efficiency,
    overhead_s: as `roofline` takes them. settings: those of the stage, with its defaults.

    Raises ValueError for what the stage, the GPU or the model cannot do; with the arithmetic where the model, or a
    padded batch of full length, does not fit in the memory.
    """
    chosen = settings_for(stage, settings)
    device, shape = find_gpu(gpu), architecture(model)
    parts = STAGES[stage]
    costs = roofline(
        device,
        shape,
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        efficiency=efficiency,
        block_size=chosen.get("block_size", 1),
        gathers=parts.allocator is not None and backend(chosen) == "torch",
        overhead_s=overhead_s,
    )
    size, share = chosen.get("block_size", 1), chosen.get("gpu_memory_utilization", 0.9)
    fit = blocks_that_fit(device, shape, dtype, tensor_parallel_size, size, share)
    fill_in(parts, chosen, shape.name, shape.max_model_len, lambda: fit)
    if parts.allocator is None and chosen["max_num_seqs"] * chosen["max_model_len"] > fit:
        lanes, length = chosen["max_num_seqs"], chosen["max_model_len"]
        raise ValueError(
            f"max_num_seqs={lanes}, max_model_len={length}: a padded batch may need {lanes} x {length} = "
            f"{lanes * length} tokens of memory, and {fit} fit. Lower one of them (max_num_seqs={fit // length} fits)"
        )
    number = f"{tensor_parallel_size} x " if tensor_parallel_size > 1 else ""
    meta = {"model": shape.name, "device": f"modelled {number}{device.name}, {dtype}"}
    return simulated(parts, chosen, costs, meta, keep_trace=keep_trace)


def build_fitted(stage: str, costs: CostModel, *, keep_trace: bool = True, **settings: Any) -> Engine:
    """The same with step times of your own, fitted to a measured trace for example.

    They know no memory: unless num_blocks is given, the pool holds whatever all lanes can fill.
    """
    chosen = settings_for(stage, settings)
    longest = chosen["max_model_len"] or 2048
    everything = chosen["max_num_seqs"] * longest
    backend(chosen)
    fill_in(STAGES[stage], chosen, "fitted", longest, lambda: everything)
    meta = {"model": "a model", "device": "fitted step times"}
    return simulated(STAGES[stage], chosen, costs, meta, keep_trace=keep_trace)


def simulated(
    stage: Stage, settings: Settings, costs: CostModel, meta: dict[str, Any], *, keep_trace: bool = True
) -> Engine:
    """An engine on a cost model of your own. settings: complete, as `fill_in` leaves them."""
    clock = VirtualClock()
    facts = {"giving_way": costs.giving_way} if settings.get("preemption") == "auto" else {}
    scheduler = make_scheduler(stage, settings, **facts)
    meta = {"stage": stage.name, **meta, "settings": settings, "costs": costs.to_dict()}
    queue = {name: settings[name] for name in QUEUE}
    return Engine(scheduler, SimulatedRunner(costs, clock), clock, meta=meta, keep_trace=keep_trace, **queue)


def backend(settings: Settings) -> str:
    """`torch` copies keys and values out of their blocks, `triton` reads them where they lie; a GPU has the latter."""
    name = settings.get("attention_backend", "torch")  # stages 2 and 3 know no other
    if name not in ("auto", "torch", "triton"):
        raise ValueError(f"attention_backend={name!r} is unknown: choose auto, torch or triton")
    if name == "auto":
        name = settings["attention_backend"] = "triton"
    return name


def padded_lanes(gpu: str, model: str, dtype: str, tensor_parallel_size: int, max_model_len: int) -> int:
    """The most rows of a padded batch (stage 1) of full length that fit in the memory; at least 1."""
    tokens = blocks_that_fit(find_gpu(gpu), architecture(model), dtype, tensor_parallel_size, 1, 0.9)
    return max(1, tokens // max_model_len)


def blocks_that_fit(
    device: GPU, model: Architecture, dtype: str, tensor_parallel_size: int, block_size: int, share: float
) -> int:
    """Blocks of keys and values in what the weights leave of `share` of the memory. Raises ValueError when none fits.

    The rest of the memory is for activations.
    """
    memory = device.memory * tensor_parallel_size * share
    weights = model.weights * BYTES[dtype]
    per_token = token_bytes(model, dtype, tensor_parallel_size)
    blocks = int((memory - weights) // (block_size * per_token))
    if blocks < 1:
        raise ValueError(
            f"{model.name} does not fit on {tensor_parallel_size} x {device.name}: its weights take {model.weights:,} "
            f"x {BYTES[dtype]} bytes = {weights / GB:.1f} GB, a block of keys and values {block_size} x {per_token:,} "
            f"bytes, and there are {tensor_parallel_size} x {device.memory / GB:.0f} GB x {share:g} = "
            f"{memory / GB:.1f} GB. Take a larger GPU, a smaller dtype, or a higher tensor_parallel_size"
        )
    return blocks


def simulated_requests(
    jobs: Iterable[Job], max_tokens: int | None = None, deadline_s: float | None = None
) -> list[Request]:
    """Requests that end after each job's `output_len` tokens.

    max_tokens: what all of them ask for, and what some stages reserve; by default the longest output of the workload,
    since nobody knows the length of an answer beforehand.
    """
    jobs = list(jobs)
    asked = max_tokens or max((job.output_len for job in jobs), default=1)
    params = SamplingParams(max_tokens=asked, ignore_eos=True)
    requests = []
    for job in jobs:
        request = Request([TOKEN], params, arrival=job.arrival, output_len=job.output_len, deadline_s=deadline_s)
        # Put in afterwards: to check millions of ids one by one would take longer than to serve them.
        request.prompt_token_ids, request.token_ids = list(job.prompt_token_ids), list(job.prompt_token_ids)
        requests.append(request)
    return requests


def steps_per_second(running: int, steps: int = 4000, clock: Callable[[], float] = perf_counter) -> float:
    """How fast the engine itself is on this machine: that many requests decode on a modelled H100, without a trace."""
    engine = build_simulated("preemptive", max_num_seqs=running, max_model_len=steps + 200, keep_trace=False)
    engine.add_all(simulated_requests([Job(range(16), steps + 100)] * running))
    for _ in range(50):
        engine.step()
    begin = clock()
    for _ in range(steps):
        engine.step()
    return steps / (clock() - begin)
