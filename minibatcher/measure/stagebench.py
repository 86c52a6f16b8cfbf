"""The stages beside each other on the real model: blocks and ranges, preemption and reservation, the long prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from minibatcher.engine import Engine
from minibatcher.measure.metrics import requests as metrics_of
from minibatcher.measure.report import Comparison, Figure, Measured, Stopwatch, undisturbed
from minibatcher.measure.workloads import Job, lognormal
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import build_engine
from minibatcher.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table

    from minibatcher.model.load import LoadedModel

MAX_MODEL_LEN = 432  # the longest job of the log-normal workload
SMALL_POOL = 6 * MAX_MODEL_LEN // 16  # blocks: ranges of max_model_len for six requests


def comparisons(model: LoadedModel) -> dict[str, Comparison]:
    rate = "tokens/s"
    return {
        "paged": Comparison(
            partial(blocks_and_ranges, model),
            [
                Figure("stage paged / iteration, 24 lanes each", "paged", "iteration", rate, 0.97),
                Figure("stage paged / iteration, the same small pool", "paged, small", "iteration, small", rate, 1),
            ],
        ),
        "preemption": Comparison(
            partial(on_demand, model),
            [
                Figure("stage preemptive / chunked, outputs end early", "preemptive", "chunked", rate, 1.2),
                Figure("the same, outputs as long as max_tokens", "preemptive, full", "chunked, full", rate),
            ],
        ),
    }


def blocks_and_ranges(model: LoadedModel, seed: int, jobs: Sequence[Job] = ()) -> Measured:
    jobs = jobs or lognormal(seed, model.vocab_size)

    def engine(stage: str, **pool: Any) -> Engine:
        return build_engine(stage, model, max_num_seqs=24, max_model_len=MAX_MODEL_LEN, keep_trace=False, **pool)

    def asked() -> list[Request]:
        return [
            Request([*job.prompt_token_ids], SamplingParams(max_tokens=job.output_len, temperature=0, ignore_eos=True))
            for job in jobs
        ]

    sides = {name: partial(engine, name) for name in ("iteration", "paged")}
    sides |= {f"{name}, small": partial(engine, name, num_blocks=SMALL_POOL) for name in ("iteration", "paged")}
    rates, _ = in_turn(seed, sides, asked)
    return {**rates, "note": f"The small pool: {SMALL_POOL} blocks of 16, for six ranges of {MAX_MODEL_LEN} tokens."}


def on_demand(
    model: LoadedModel,
    seed: int,
    n: int = 24,
    prompt: int = 32,
    ends: int = 24,
    max_tokens: int = 192,
    full: int = 64,
    blocks: int = 64,
) -> Measured:
    """n requests in a small pool. First they ask for `max_tokens` and end after `ends`; then, where preemption loses,
    they ask for `full` tokens and take them all."""

    def engine(stage: str) -> Engine:
        return build_engine(stage, model, max_num_seqs=n, num_blocks=blocks)

    def asked(max_tokens: int, last: int) -> list[Request]:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        made = [Request([(7 * i + seed) % model.vocab_size] * prompt, params) for i in range(n)]
        for request in made:  # counted when it is called: the new token is in the request already
            request.on_token = lambda _, request=request: request.num_tokens - request.num_prompt_tokens == last
        return made

    both = {stage: partial(engine, stage) for stage in ("chunked", "preemptive")}
    rates, traces = in_turn(seed, both, partial(asked, max_tokens, ends))
    full_rates, full_traces = in_turn(seed, both, partial(asked, full, full))
    told = {"ending early": traces, "full length": full_traces}
    note = "; ".join(f"{what}: {stage} {cost(trace)}" for what, all_ in told.items() for stage, trace in all_.items())
    return {**rates, **{f"{stage}, full": rate for stage, rate in full_rates.items()}, "note": note}


def cost(trace: Trace) -> str:
    most = max(len({work.id for work in record.work}) for record in trace)
    preempted = sum(len(record.preempted) for record in trace)
    again = sum(work.tokens for record in trace for work in record.work if work.kind == "recompute")
    return f"at most {most} at once, {preempted} preemptions, {again} tokens recomputed"


def in_turn(
    seed: int, sides: Mapping[str, Callable[[], Engine]], asked: Callable[[], list[Request]]
) -> tuple[Measured, dict[str, Trace]]:
    """Output tokens/s of each side on the same requests; each is the first one at times."""
    names = list(sides)
    rates: Measured = {}
    traces = {}
    for name in names[seed % len(names) :] + names[: seed % len(names)]:
        engine, served = sides[name](), asked()
        with undisturbed():
            watch = Stopwatch()
            traces[name] = engine.run(served)
            rates[name] = sum(len(request.output_token_ids) for request in served) / watch.seconds
    return rates, {name: traces[name] for name in names}


# -- a long prompt among streams --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stall:
    """gap_tokens: tokens that were scheduled between two tokens of a stream, at most. gap_ms: the longest such gap.
    ttft_s: what the newcomer with the long prompt waited for its first token."""

    what: str
    gap_tokens: int
    gap_ms: float
    ttft_s: float


def chunked(
    model: LoadedModel, budgets: Sequence[int] = (512, 128, 32), streams: int = 8, prompt: int = 1500
) -> list[Stall]:
    """Streams decode, and a long prompt arrives: stage paged, then chunked with each budget."""
    cases: list[tuple[str, str, dict[str, Any]]] = [("paged (no budget)", "paged", {})]
    cases += [(f"chunked, budget {budget}", "chunked", {"max_num_batched_tokens": budget}) for budget in budgets]
    return [stall(model, what, stage, settings, streams, prompt) for what, stage, settings in cases]


def stall(model: LoadedModel, what: str, stage: str, settings: dict[str, Any], streams: int, prompt: int) -> Stall:
    longest = prompt + 16
    engine = build_engine(stage, model, max_num_seqs=streams + 1, max_model_len=longest, **settings)
    budget = settings.get("max_num_batched_tokens", prompt)
    steps = 12 + -(-prompt // (budget - streams))  # the streams go on for a little longer than the prompt takes
    params = SamplingParams(max_tokens=min(steps, longest - 4), temperature=0, ignore_eos=True)
    engine.add_all([Request([11 + i] * 4, params, f"stream {i}") for i in range(streams)])
    for _ in range(4):
        engine.step()
    engine.add(Request([5] * prompt, SamplingParams(max_tokens=2, temperature=0, ignore_eos=True), "newcomer"))
    while engine.has_work:
        engine.step()
    found = metrics_of(engine.trace)
    gaps = [gap for id, one in found.items() if id != "newcomer" for gap in one.itls]
    scheduled = [sum(work.tokens for work in record.work) for record in engine.trace if "stream 0" in record.emitted]
    return Stall(what, max(scheduled[1:]), 1000 * max(gaps), found["newcomer"].ttft or 0.0)


def stall_table(stalls: Sequence[Stall], streams: int = 8, prompt: int = 1500) -> Table:
    from rich.table import Table

    out = Table(title=f"{streams} streams decode, and a prompt of {prompt:,} tokens arrives")
    out.add_column("", no_wrap=True)
    for column in ("longest gap (tokens)", "longest gap (ms)", "newcomer's TTFT (s)"):
        out.add_column(column, justify="right")
    for one in stalls:
        out.add_row(one.what, f"{one.gap_tokens:,}", f"{one.gap_ms:,.0f}", f"{one.ttft_s:.2f}")
    return out
