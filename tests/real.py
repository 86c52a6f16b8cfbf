"""A real tiny model in an engine of stage 6 that may be told to preempt; and what a request gives alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from oracle import MARGIN, next_logits
from stub import Forced

from minibatcher import Engine, Request, SamplingParams
from minibatcher.clock import Clock
from minibatcher.model.load import load
from minibatcher.model.sampling import sample
from minibatcher.stages import STAGES, parts, settings_for


def engine(model, clock: Clock | None = None, **settings) -> Engine:
    """Its scheduler is `Forced`, and its pools are full of NaN."""
    stage = replace(STAGES["preemptive"], scheduler=Forced)
    scheduler, runner = parts(stage, load(model), settings_for("preemptive", settings))
    for tensor in runner.pool.keys + runner.pool.values + runner.pool.cpu:
        tensor.fill_(torch.nan)
    return Engine(scheduler, runner, clock)


def poison(eng: Engine) -> None:
    """Fill with NaN what is free. Between two steps, since what was freed in a step may still have to be copied."""
    pool, scheduler = eng.runner.pool, eng.scheduler
    for tensor in pool.keys + pool.values:
        tensor[scheduler.allocator.free_blocks] = torch.nan
    for tensor in pool.cpu:
        tensor[scheduler.cpu.free_blocks] = torch.nan


class Alone:
    """What a request gives when nobody else is there: transformers' forward without a cache, and our sampling.

    Each continuation is computed once, and only as far as it is asked for.
    """

    def __init__(self, model, eos: frozenset[int] = frozenset({1})) -> None:
        self.model, self.eos = model, eos
        self.known: dict[tuple, tuple[Request, list[float]]] = {}

    def check(self, made: Request) -> None:
        """Fail unless its tokens are those. Where two logits are nearer than MARGIN the rest is not compared."""
        output = made.output_token_ids
        twin, margins = self.twin(made.prompt_token_ids, made.params, len(output))
        expected = twin.output_token_ids[: len(output)]
        if output != expected:
            first = next(i for i, pair in enumerate(zip(output, expected, strict=True)) if pair[0] != pair[1])
            assert made.params.temperature == 0 and margins[first] < MARGIN, f"{output} is not {expected}"

    def twin(self, prompt: list[int], params: SamplingParams, length: int) -> tuple[Request, list[float]]:
        key = (tuple(prompt), params.temperature, params.seed, params.repetition_penalty)
        twin, margins = self.known.setdefault(key, (Request(prompt, params), []))
        while len(twin.output_token_ids) < length:
            logits = next_logits(self.model, twin.token_ids)
            best = logits.topk(2).values
            margins.append(float(best[0] - best[1]))
            twin.token_ids.append(sample(logits[None], [twin])[0])
        return twin, margins
