"""The engine at work, beside transformers and beside the bare model: the comparisons of `minibatcher bench`.

All sides of a comparison compute the same jobs, greedily, with the same number of tokens. Whether they are the same
tokens is counted, and said below the table.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import ContinuousBatchingConfig, GenerationConfig

from minibatcher.engine import Engine
from minibatcher.measure.report import Comparison, Figure, Measured, Stopwatch, seconds, undisturbed
from minibatcher.measure.workloads import Job, lognormal
from minibatcher.model.attention import Gather, attending
from minibatcher.model.batch import FlatBatch, flatten
from minibatcher.model.load import LoadedModel
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import build_engine

# The longest job of the workload; with ranges of that length, 24 requests fit in the engine's pool of 1 GiB.
MAX_MODEL_LEN = 432
Tokens = list[list[int]]  # the answer to each job
Side = Callable[[], tuple[Tokens, Measured]]


def comparisons(model: LoadedModel) -> dict[str, Comparison]:
    rate, step = "tokens/s", "ms a step"
    return {
        "throughput": Comparison(
            partial(throughput, model),
            [
                Figure("24 lanes / transformers' generate, static batches of 8", "24 lanes", "static", rate, 2.2),
                Figure("8 lanes / the same", "8 lanes", "static", rate),
                Figure("24 lanes / transformers' continuous batching, warm", "24 lanes", "warm", rate, 1.2),
                Figure("24 lanes / the same, its start-up counted", "24 lanes", "with start-up", rate, 3),
                Figure("its start-up / its serving, in seconds", "start-up", "serving", "s"),
            ],
        ),
        "bare": Comparison(
            partial(bare, model),
            [Figure("bare model / engine, 24 lanes, decoding", "bare", "engine", step, 0.92)],
        ),
        "bare-600": Comparison(
            partial(bare_at, model),
            [Figure("bare model / engine, 16 rows at context 600", "bare", "engine", step, 0.75)],
        ),
        "uneven": Comparison(
            partial(uneven, model),
            [
                Figure("15 rows at 60, 1 at 1,800 / 16 at 60 + attention", "uneven", "sum", step, 1.15, at_most=True),
                Figure("attention of one row at 1,800 / 16 rows at 60", "attention", "even", step),
            ],
        ),
        "memory": Comparison(
            partial(memory, model),
            [Figure("a step's peak allocation, pool doubled / not", "doubled", "single", "MiB", 1, at_most=True)],
        ),
    }


# -- output tokens/s --------------------------------------------------------------------------------------------------


def throughput(
    model: LoadedModel, seed: int, jobs: Sequence[Job] = (), lanes: int = 24, batch: int = 8, **continuous_batching: Any
) -> Measured:
    """Output tokens/s of the engine and of transformers. jobs: the log-normal workload, unless given."""
    jobs = jobs or lognormal(seed, model.vocab_size)
    sides: dict[str, Side] = {
        f"{lanes} lanes": partial(serve, model, jobs, lanes),
        f"{batch} lanes": partial(serve, model, jobs, batch),
        "generate": partial(generate, model, jobs, batch),
        "continuous batching": partial(continuous, model, jobs, **continuous_batching),
    }
    if seed == 0:  # the first calls of a process pay for what later ones find
        serve(model, [Job([0, 0], 2)], 1)
        generate(model, [Job([0, 0], 2)], 1)
    names = list(sides)
    tokens: dict[str, Tokens] = {}
    measured: Measured = {}
    for name in names[seed % len(names) :] + names[: seed % len(names)]:  # each is the first one at times
        with undisturbed():
            tokens[name], figures = sides[name]()
        measured |= figures
    same = [
        f"{name} {sum(a == b for a, b in zip(tokens[names[0]], tokens[name], strict=True))} of {len(jobs)}"
        for name in names[1:]
        if tokens[name]
    ]
    settings = f"stage iteration, reserve=max, max_model_len={MAX_MODEL_LEN}; all {lanes} lanes ran at once"
    measured["note"] = f"Engine: {settings}. Same answers as with {names[0]}: {', '.join(same)}."
    return measured


def serve(model: LoadedModel, jobs: Sequence[Job], lanes: int) -> tuple[Tokens, Measured]:
    """The engine, with its default reserve=max."""
    engine = build_engine("iteration", model, max_num_seqs=lanes, max_model_len=MAX_MODEL_LEN)
    served = requests(jobs)
    time = seconds(lambda: engine.run(served))
    at_once = max(len({work.lane for work in record.work}) for record in engine.trace)
    if at_once < min(lanes, len(jobs)):
        raise RuntimeError(f"the pool held only {at_once} requests at once: {lanes} lanes were to be measured")
    return [request.output_token_ids for request in served], {f"{lanes} lanes": output_tokens(jobs) / time}


def generate(model: LoadedModel, jobs: Sequence[Job], batch: int) -> tuple[Tokens, Measured]:
    """transformers' `generate`, a batch after the other, padded in front; a batch runs until its longest answer."""
    tokens: Tokens = []

    def all_batches() -> None:
        for start in range(0, len(jobs), batch):
            rows = jobs[start : start + batch]
            width = max(len(job.prompt_token_ids) for job in rows)
            padding = [width - len(job.prompt_token_ids) for job in rows]
            answers = model.model.generate(  # type: ignore[operator]
                input_ids=torch.tensor(
                    [[0] * n + [*job.prompt_token_ids] for n, job in zip(padding, rows, strict=True)]
                ),
                attention_mask=torch.tensor([[0] * n + [1] * (width - n) for n in padding]),
                generation_config=greedy(model, max_new_tokens=max(job.output_len for job in rows)),
            )[:, width:]
            tokens.extend(answer[: job.output_len].tolist() for answer, job in zip(answers, rows, strict=True))

    with torch.inference_mode():
        time = seconds(all_batches)
    return tokens, {"static": output_tokens(jobs) / time}


def continuous(model: LoadedModel, jobs: Sequence[Job], **config: Any) -> tuple[Tokens, Measured]:
    """transformers' own continuous batching: from the moment when it is warm, and with its start-up.

    The second is what one call of `generate_batch` takes. It is spelled out here, because `generate_batch` knows one
    `max_new_tokens` for all. config: of ContinuousBatchingConfig; the default is what a user gets, and then a start-up
    lasts the longer the more memory is free.
    """
    try:
        watch = Stopwatch()
        with (
            torch.inference_mode(),
            model.model.continuous_batching_context_manager(  # type: ignore[operator]
                greedy(model), continuous_batching_config=ContinuousBatchingConfig(**config)
            ) as manager,
        ):
            start_up = watch.seconds
            answered(manager, [Job(jobs[0].prompt_token_ids, 2)])  # the last of its warming up
            watch = Stopwatch()
            tokens = answered(manager, jobs)
            time = watch.seconds
    except Exception as error:  # another version of transformers may do it another way; the other figures go on
        why_not = f"{type(error).__name__}: {error}"
        return [], dict.fromkeys(("warm", "with start-up", "start-up", "serving"), why_not)
    return tokens, {
        "warm": output_tokens(jobs) / time,
        "with start-up": output_tokens(jobs) / (start_up + time),
        "start-up": start_up,
        "serving": time,
    }


def answered(manager: Any, jobs: Sequence[Job]) -> Tokens:
    ids = [manager.add_request([*job.prompt_token_ids], max_new_tokens=job.output_len) for job in jobs]
    answers: dict[str, list[int]] = {}
    while len(answers) < len(ids):
        answer = manager.get_result(timeout=1)
        if answer is None and not manager.is_running():
            raise RuntimeError("its thread ended early")
        if answer is not None and answer.error:
            raise RuntimeError(answer.error)
        if answer is not None and answer.is_finished():
            answers[answer.request_id] = answer.generated_tokens
    return [answers[id] for id in ids]


def greedy(model: LoadedModel, **more: Any) -> GenerationConfig:
    """Greedy, and no token ends an answer: the end token is one that the model does not have."""
    return GenerationConfig(do_sample=False, eos_token_id=model.vocab_size, pad_token_id=0, **more)


def output_tokens(jobs: Sequence[Job]) -> int:
    return sum(job.output_len for job in jobs)


def requests(jobs: Sequence[Job]) -> list[Request]:
    def params(job: Job) -> SamplingParams:
        return SamplingParams(max_tokens=job.output_len, temperature=0, ignore_eos=True)

    return [Request([*job.prompt_token_ids], params(job)) for job in jobs]


# -- the bare model ---------------------------------------------------------------------------------------------------


class Resident:
    """Stands in for the pool: all keys and values lie where attention wants them. Nothing is written or gathered."""

    def __init__(self, gather: Gather) -> None:
        self.at_hand = {
            (layer, id(piece.slots)): tuple(tensor.clone() for tensor in gather.pool.read(layer, piece.slots))
            for layer in range(len(gather.pool.keys))
            for piece in gather.pieces
        }

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        pass

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, ...]:
        return self.at_hand[layer, id(slots)]


def bare(model: LoadedModel, seed: int, jobs: Sequence[Job] = (), lanes: int = 24, steps: int = 32) -> Measured:
    """The log-normal workload. Its first step, all prompts, is left out: it hides what a decode costs."""
    engine = build_engine("iteration", model, max_num_seqs=lanes, max_model_len=MAX_MODEL_LEN)
    engine.add_all(requests(jobs or lognormal(seed, model.vocab_size)))
    engine.step()
    return step_by_step(model, engine, steps)


def bare_at(model: LoadedModel, seed: int, contexts: Sequence[int] = (600,) * 16, steps: int = 8) -> Measured:
    return step_by_step(model, decoding(model, contexts, steps), steps)


@torch.inference_mode()
def step_by_step(model: LoadedModel, engine: Engine, steps: int) -> Measured:
    """A step of the engine, then the bare model on the same flat batch, and so on. Milliseconds a step."""
    runner: Any = engine.runner
    prepare, kept = runner.attention.prepare, []

    def prepare_and_keep(batch: FlatBatch) -> Gather:
        kept.append(prepare(batch))
        return kept[-1]

    runner.attention.prepare = prepare_and_keep

    def run_bare(gather: Gather) -> Tensor:
        batch = gather.batch
        with attending(model.model, gather):
            return model.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.last_rows,
            ).logits[0]

    times: list[tuple[float, float]] = []
    same = rows = 0
    with undisturbed():
        while engine.has_work and len(times) < steps:
            engine_time = seconds(engine.step)
            gather = kept.pop()
            served = gather.batch.sampled
            gather = dataclasses.replace(gather, pool=Resident(gather))  # type: ignore[arg-type]
            watch = Stopwatch()
            logits = run_bare(gather)
            times.append((engine_time, watch.seconds))
            same += sum(int(row.argmax()) == one.token_ids[-1] for row, one in zip(logits, served, strict=True))
            rows += len(served)
    note = "Its tokens are the engine's." if same == rows else f"Only {same} of its {rows} tokens are the engine's."
    engine_ms, bare_ms = (1000 * mean(side) for side in zip(*times, strict=True))
    return {"engine": engine_ms, "bare": bare_ms, "note": note}


def decoding(model: LoadedModel, contexts: Sequence[int], steps: int) -> Engine:
    """An engine whose requests are in the midst of decoding, at these contexts, for so many steps and one more.

    What lies in its pool is random, for computing it would take minutes. How long a step takes does not depend on it.
    """
    lanes, longest = len(contexts), max(contexts) + steps + 1
    engine = build_engine(
        "iteration", model, keep_trace=False, max_num_seqs=lanes, max_model_len=longest, reserve="max_tokens"
    )
    runner: Any = engine.runner
    for tensor in runner.pool.keys + runner.pool.values:
        tensor.normal_()
    engine.add_all(requests([Job([0] * context, steps + 1) for context in contexts]))
    running = engine.scheduler.schedule().work
    if len(running) < lanes:
        raise RuntimeError(f"the pool holds only {len(running)} of these {lanes} requests at once")
    for request in running:
        request.num_computed = request.num_tokens - 1
        runner.attention.begin(request)
    engine.step()
    return engine


# -- one long row among short ones ------------------------------------------------------------------------------------


@torch.inference_mode()
def uneven(
    model: LoadedModel, seed: int, rows: int = 16, short: int = 60, long: int = 1800, steps: int = 8
) -> Measured:
    """A step with one long row, beside the sum of what it should cost: a step without it, and its attention alone."""
    mixed = decoding(model, [short] * (rows - 1) + [long], steps)
    even = decoding(model, [short] * rows, steps)
    alone = decoding(model, [long], steps)
    runner: Any = alone.runner
    batch = flatten(alone.scheduler.schedule(), runner.pool.block_size, runner.pool.device)
    gather = runner.attention.prepare(batch)
    heads = model.model.config.get_text_config().num_attention_heads
    inputs = [[torch.randn(1, n, size) for n in (heads, kv_heads, kv_heads)] for kv_heads, size in model.layers]

    def attention() -> None:
        for layer, (query, key, value) in enumerate(inputs):
            gather(layer, query, key, value, query.shape[-1] ** -0.5, None, None)

    attention()
    with undisturbed():
        times = [(seconds(mixed.step), seconds(even.step), seconds(attention)) for _ in range(steps)]
    mixed_ms, even_ms, attention_ms = (1000 * median(side) for side in zip(*times, strict=True))
    return {"uneven": mixed_ms, "even": even_ms, "attention": attention_ms, "sum": even_ms + attention_ms}


# -- memory -----------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that come to life while it is on, and remembers the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakSet = weakref.WeakSet()  # storages; that of the pool is no news

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.known.update(leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        result = function(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
            if storage not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, size: int) -> None:
        self.now -= size


def memory(model: LoadedModel, seed: int, num_blocks: int = 64, rows: int = 4, prompt: int = 32) -> Measured:
    """MiB at the peak of a step of prompts and a step of decodes, with num_blocks and with twice as many."""

    def peak(num_blocks: int) -> float:
        engine = build_engine("iteration", model, max_num_seqs=rows, max_model_len=128, num_blocks=num_blocks)
        engine.add_all(requests([Job([0] * prompt, 3)] * rows))
        with Allocations() as allocations:
            engine.step()
            engine.step()
        return allocations.peak / 2**20

    return {"single": peak(num_blocks), "doubled": peak(2 * num_blocks)}
