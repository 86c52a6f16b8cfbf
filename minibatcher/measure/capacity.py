"""How much traffic an engine carries under objectives, what limits it, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any

from minibatcher.engine import Engine
from minibatcher.measure.metrics import Percentiles, Summary, running, summary
from minibatcher.measure.simulator import simulated_requests
from minibatcher.measure.workloads import Job
from minibatcher.request import FinishReason, Request
from minibatcher.trace import Trace

Objectives = Mapping[str, float]  # "ttft_p99": seconds
Build = Callable[[bool], Engine]  # (whether to keep a trace) -> a fresh engine
Load = Callable[[float, int], Sequence[Job]]  # (requests/s, seed) -> the jobs

TIMES = ("ttft", "itl", "tpot", "e2e")
RESOLUTION = 0.02  # the bisection ends when the rates that do and do not meet the objectives are as near as this
# Student's t for a two-sided 95% interval, by the number of values less one.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def objectives(texts: Sequence[str]) -> dict[str, float]:
    """`ttft_p99=1.0` and so on: a time, a percentile and a limit in seconds. Raises ValueError for anything else."""
    names = [f"{time}_{percentile}" for time in TIMES for percentile in Percentiles.__slots__]
    found = {}
    for text in texts:
        name, _, limit = text.partition("=")
        try:
            seconds = float(limit)
        except ValueError:
            seconds = 0.0
        if name not in names or not 0 < seconds < inf:
            raise ValueError(f"{text!r} is no objective: write NAME=SECONDS, above 0, with one of {', '.join(names)}")
        found[name] = seconds
    if not found:
        raise ValueError("a capacity without an objective says nothing: give at least one, for example ttft_p99=1.0")
    return found


def missed(figures: Summary, limits: Objectives) -> list[str]:
    """The objectives that a run misses, and `finished` if a request was rejected or aborted."""
    out = []
    for name, limit in limits.items():
        time, percentile = name.split("_")
        value = getattr(getattr(figures, time), percentile)
        if value is not None and value > limit:  # answers of one token have no gaps, and meet any ITL and TPOT
            out.append(name)
    good = sum(figures.finish_reasons.get(reason, 0) for reason in (FinishReason.STOP, FinishReason.LENGTH))
    return out if good == figures.requests else [*out, "finished"]


@dataclass(frozen=True)
class Capacity:
    """rate: requests/s, the mean over seeds; low, high: its 95% confidence interval (equal to it for one seed).

    figures: of the run at the highest rate that meets the objectives. missed: what the next higher rate tried misses.
    shares: of that run's busy time, by what held it up; limit: the largest.
    """

    rate: float
    low: float
    high: float
    rates: list[float]
    figures: Summary
    missed: list[str]
    shares: dict[str, float]
    limit: str

    def users(self, think_s: float) -> float:
        """People who each send their next request `think_s` seconds after an answer (Little's law)."""
        return self.rate * ((self.figures.mean_e2e or 0.0) + think_s)

    def price(self, per_hour: float) -> float:
        """Per million output tokens, at a price per hour for the whole machine."""
        tokens = self.figures.output_tokens_per_s * 3600
        return per_hour / tokens * 1e6 if tokens else inf

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def capacity(
    build: Build,
    load: Load,
    limits: Objectives,
    seeds: Sequence[int] = (0,),
    max_tokens: int | None = None,
    told: Callable[[int, float], None] = lambda seed, rate: None,
) -> Capacity:
    """The highest rate at which all objectives are met: a bisection for each seed.

    load: the same seed must give the same jobs at every rate, only closer or farther apart. max_tokens: as for
    `simulated_requests`. told: called before each run, with the seed and the rate.

    Raises ValueError when even one request in a thousand seconds is too much, or no rate is.
    """
    found: list[float] = []
    rate = 1.0
    for seed in seeds:

        def run(rate: float, keep_trace: bool = False, seed: int = seed) -> Trace:
            told(seed, rate)
            return serve(build(keep_trace), simulated_requests(load(rate, seed), max_tokens))

        meets, fails = 0.0, inf
        step = 2.0 if not found else 1.1  # another seed's capacity is near
        while fails > meets * (1 + RESOLUTION):
            misses = missed(summary(run(rate)), limits)
            meets, fails = (meets, rate) if misses else (rate, fails)
            if fails < 1e-3:
                named = ", ".join(f"{name}={limits.get(name, '')}" for name in misses)
                raise ValueError(f"even {rate:.4f} requests/s miss {named}: loosen it, or take a faster machine")
            if meets > 1e6:
                raise ValueError("a million requests/s meet the objectives: the workload is too short to be a load")
            rate = rate / step if not meets else rate * step if fails == inf else sqrt(meets * fails)
        found.append(meets)
        rate = meets
    spread = STUDENT.get(len(found) - 1, 2.0) * stdev(found) / sqrt(len(found)) if len(found) > 1 else 0.0
    good, bad = run(meets, keep_trace=True), run(fails, keep_trace=True)
    shares = limited_by(bad)
    return Capacity(
        rate=mean(found),
        low=mean(found) - spread,
        high=mean(found) + spread,
        rates=found,
        figures=summary(good),
        missed=missed(summary(bad), limits),
        shares=shares,
        limit=max(shares, key=lambda name: shares[name]),
    )


def serve(engine: Engine, requests: list[Request]) -> Trace:
    """As Engine.run; without a trace, the records still tell of arrivals, tokens and ends, which is all it takes to
    compute latencies.
    """
    if engine.keep_trace:
        return engine.run(requests)
    engine.add_all(requests)
    records = []
    while engine.has_work:
        records.append(engine.step())
    return Trace(engine.trace.meta, records)


def limited_by(trace: Trace) -> dict[str, float]:
    """Shares of the busy time. While somebody waits and the step had room for more tokens, lanes (`slots`) or memory
    (`KV memory`) held it up; in all other steps the larger part of the step's own time did (`compute`, `bandwidth`).
    """
    lanes = trace.meta["settings"]["max_num_seqs"]
    seconds = {"compute": 0.0, "bandwidth": 0.0, "KV memory": 0.0, "slots": 0.0}
    for record, count in zip((record for record in trace if record.work), running(trace), strict=True):
        cost = record.cost or {}
        full = record.budget is not None and sum(work.tokens for work in record.work) >= record.budget
        if record.waiting and not full:
            name = "slots" if count == lanes or record.kv is None else "KV memory"
        else:
            reads = cost.get("weights", 0.0) + cost.get("kv", 0.0) + cost.get("gather", 0.0)
            name = "compute" if cost.get("compute", 0.0) + cost.get("attention", 0.0) > reads else "bandwidth"
        seconds[name] += record.t1 - record.t0
    busy = sum(seconds.values()) or 1.0
    return {name: value / busy for name, value in seconds.items()}
