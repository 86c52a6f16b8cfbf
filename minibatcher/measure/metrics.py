"""Latency and throughput of a trace, as serving papers and vLLM's benchmark define them.

All times are in seconds on the engine's clock. A token's time is the end (`t1`) of the step that emitted it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from minibatcher.request import FinishReason
from minibatcher.trace import StepRecord, Trace


@dataclass(slots=True)
class RequestMetrics:
    """One request's times. What the trace does not show is None: a trace may begin after the request arrived."""

    arrival: float | None = None
    prompt_tokens: int | None = None
    first_scheduled: float | None = None  # the first step that computed for it begins
    token_times: list[float] = field(default_factory=list)  # one for each output token
    finished: float | None = None  # the step that told of its end is over
    finish_reason: str | None = None

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def first_token(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    @property
    def last_token(self) -> float | None:
        return self.token_times[-1] if self.token_times else None

    @property
    def queue(self) -> float | None:
        """From arrival until it is first scheduled."""
        return _difference(self.first_scheduled, self.arrival)

    @property
    def ttft(self) -> float | None:
        """Time to first token, from arrival."""
        return _difference(self.first_token, self.arrival)

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies: the gaps between its tokens; 0 between two tokens of one step."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: the mean gap. None for fewer than two tokens."""
        gaps = self.output_tokens - 1
        return (self.token_times[-1] - self.token_times[0]) / gaps if gaps > 0 else None

    @property
    def e2e(self) -> float | None:
        """From arrival to the end, whatever the reason. None for a request that ended without a token."""
        return _difference(self.finished, self.arrival) if self.token_times else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """None when there is no value at all."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Percentiles:
        """Of those that are defined."""
        known = sorted(value for value in values if value is not None)
        return cls(percentile(known, 50), percentile(known, 95), percentile(known, 99))


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers. A row is one position that the model computes; a row-step is one lane computing in one step.

    Means are over the steps that computed something. Rates and means of an empty trace are 0.
    """

    seconds: float  # from the first arrival, or the first step if that is earlier, to the end of the last step
    steps: int
    requests: int
    finish_reasons: dict[str, int]
    output_tokens: int
    output_tokens_per_s: float
    scheduled_tokens_per_step: float  # wasted rows are not scheduled
    ttft: Percentiles
    itl: Percentiles  # over all gaps of all requests
    tpot: Percentiles
    e2e: Percentiles
    mean_e2e: float | None
    queue: Percentiles
    useful_row_steps: int
    wasted_row_steps: int  # the lane computed, and only padding or a finished request
    wasted_row_share: float  # rows computed for padding and finished requests, over all rows computed
    mean_lanes_busy: float  # useful or wasted
    mean_lanes_useful: float
    mean_running: float
    max_running: int
    mean_waiting: float
    max_waiting: int
    kv_used_share: float | None  # of the pool: keys and values are there; None without a pool
    kv_reserved_share: float | None  # of the pool: a request owns it, and nothing is there (reserved or internal)
    preemptions: int  # a turn that is over is none
    recomputed_tokens: int  # computed again after a preemption
    mfu: float | None  # FLOPs done over those possible while it was busy; None where the peaks are not known
    mbu: float | None  # the same for bytes of memory

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0 to 100), linear between the two nearest ranks as in numpy. None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = q / 100 * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def span(trace: Trace) -> tuple[float, float]:
    """When the trace begins (the first arrival, or the first step if that is earlier) and ends (the last step's t1)."""
    if not trace.records:
        return 0.0, 0.0
    arrivals = [arrival.time for record in trace for arrival in record.arrived]
    return min([trace[0].t0, *arrivals]), trace[-1].t1


def requests(trace: Trace) -> dict[str, RequestMetrics]:
    """Every request of the trace, in order of appearance. An id that arrives again replaces its first use."""
    found: dict[str, RequestMetrics] = {}
    for record in trace:
        for arrival in record.arrived:
            found[arrival.id] = RequestMetrics(arrival.time, arrival.prompt_tokens)
        for work in record.work:
            request = found.setdefault(work.id, RequestMetrics())
            if request.first_scheduled is None:
                request.first_scheduled = record.t0
        for id, tokens in record.emitted.items():
            found.setdefault(id, RequestMetrics()).token_times += [record.t1] * len(tokens)
        for id, reason in record.finished:
            request = found.setdefault(id, RequestMetrics())
            request.finished, request.finish_reason = record.t1, reason
    return found


def summary(trace: Trace) -> Summary:
    """The whole trace in numbers; requests that have not finished count with what they got."""
    found = requests(trace)
    begin, end = span(trace)
    steps = [record for record in trace if record.work]
    busy = [len({work.lane for work in record.work}) for record in steps]
    useful = [len({work.lane for work in record.work if work.kind != "wasted"}) for record in steps]
    rows = Counter[str]()
    for record in steps:
        for work in record.work:
            rows[work.kind] += work.tokens
    counts = running(trace)
    waiting = [1 + record.waiting.behind if record.waiting else 0 for record in steps]
    pools = [record.kv for record in steps if record.kv]
    output_tokens = sum(len(tokens) for record in trace for tokens in record.emitted.values())
    return Summary(
        seconds=end - begin,
        steps=len(steps),
        requests=len(found),
        finish_reasons=dict(Counter(r.finish_reason for r in found.values() if r.finish_reason)),
        output_tokens=output_tokens,
        output_tokens_per_s=_ratio(output_tokens, end - begin),
        scheduled_tokens_per_step=_ratio(rows.total() - rows["wasted"], len(steps)),
        ttft=Percentiles.of(r.ttft for r in found.values()),
        itl=Percentiles.of(gap for r in found.values() for gap in r.itls),
        tpot=Percentiles.of(r.tpot for r in found.values()),
        e2e=Percentiles.of(r.e2e for r in found.values()),
        mean_e2e=_mean(stays) if (stays := [r.e2e for r in found.values() if r.e2e is not None]) else None,
        queue=Percentiles.of(r.queue for r in found.values()),
        useful_row_steps=sum(useful),
        wasted_row_steps=sum(busy) - sum(useful),
        wasted_row_share=_ratio(rows["wasted"], rows.total()),
        mean_lanes_busy=_mean(busy),
        mean_lanes_useful=_mean(useful),
        mean_running=_mean(counts),
        max_running=max(counts, default=0),
        mean_waiting=_mean(waiting),
        max_waiting=max(waiting, default=0),
        kv_used_share=_mean([kv["used"] / kv["total"] for kv in pools]) if pools else None,
        kv_reserved_share=_mean([(kv["reserved"] + kv["internal"]) / kv["total"] for kv in pools]) if pools else None,
        preemptions=sum(preemption.cause != "turn" for record in trace for preemption in record.preempted),
        recomputed_tokens=rows["recompute"],
        mfu=_utilisation(steps, "mfu"),
        mbu=_utilisation(steps, "mbu"),
    )


def goodput(
    trace: Trace,
    *,
    ttft: float | None = None,
    tpot: float | None = None,
    itl: float | None = None,
    e2e: float | None = None,
) -> float:
    """Requests/s that finish (`stop` or `length`) and meet every given objective (DistServe, OSDI'24).

    Objectives are limits in seconds on each request by itself: TTFT, TPOT (its mean gap), ITL (its longest
    gap: in an answer of hundreds a percentile would forgive a stall), E2E. One of one token meets any TPOT and ITL.
    """

    def meets(value: float | None, limit: float | None) -> bool:
        return limit is None or (value is not None and value <= limit)

    good = sum(
        r.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        and meets(r.ttft, ttft)
        and meets(r.tpot or 0.0, tpot)
        and meets(max(r.itls, default=0.0), itl)
        and meets(r.e2e, e2e)
        for r in requests(trace).values()
    )
    begin, end = span(trace)
    return _ratio(good, end - begin)


def little(trace: Trace) -> tuple[float, float]:
    """Requests in the system on average, in two ways that must agree (Little's law, Operations Research 1961).

    First as they were seen in every step, running and waiting; then as arrivals/s times the mean time from arrival to
    end. For a trace that begins and ends with nobody there.
    """
    begin, end = span(trace)
    present = 0.0  # request-seconds
    here = left = 0
    last = begin
    running: set[str] = set()
    for record in trace:
        present += left * (record.t0 - last)  # nothing was computed in between
        present += sum(record.t0 - arrival.time for arrival in record.arrived)
        running -= {preemption.id for preemption in record.preempted}
        running |= {work.id for work in record.work if work.kind != "wasted"}
        here = len(running) + (1 + record.waiting.behind if record.waiting else 0)
        present += here * (record.t1 - record.t0)
        running -= {id for id, _ in record.finished}
        left, last = here - len(record.finished), record.t1
    stays = [r.finished - r.arrival for r in requests(trace).values() if r.finished and r.arrival is not None]
    rate = _ratio(len(stays), end - begin)
    return _ratio(present, end - begin), rate * _mean(stays)


@dataclass(frozen=True, slots=True)
class Bucket:
    """low, high: the first and the last number that falls into it."""

    low: int
    high: int
    count: int
    seconds: Percentiles


def ttft_by_prompt(trace: Trace) -> list[Bucket]:
    """By prompt length in tokens. Requests whose prompt or first token the trace does not show are left out."""
    return _buckets((r.prompt_tokens, r.ttft) for r in requests(trace).values())


def e2e_by_output(trace: Trace) -> list[Bucket]:
    """By tokens of the answer."""
    return _buckets((r.output_tokens, r.e2e) for r in requests(trace).values())


def itl_by_active(trace: Trace) -> list[Bucket]:
    """Each gap between two tokens, by the number of requests that computed in the step that ended it."""
    last: dict[str, float] = {}
    gaps: list[tuple[int, float]] = []
    for record in trace:
        active = len({work.id for work in record.work if work.kind != "wasted"})
        for id, tokens in record.emitted.items():
            for time in [record.t1] * len(tokens):
                if id in last:
                    gaps.append((active, time - last[id]))
                last[id] = time
    return _buckets(gaps)


def _buckets(pairs: Iterable[tuple[int | None, float | None]]) -> list[Bucket]:
    """1, 2 to 3, 4 to 7 and so on: each is twice as wide as the one before; empty ones are left out."""
    found: dict[int, list[float]] = {}
    for number, seconds in pairs:
        if number and seconds is not None:
            found.setdefault(number.bit_length(), []).append(seconds)
    return [
        Bucket(1 << (bits - 1), (1 << bits) - 1, len(values), Percentiles.of(values))
        for bits, values in sorted(found.items())
    ]


def _utilisation(steps: Sequence[StepRecord], name: str) -> float | None:
    costs = [record.cost for record in steps if record.cost and name in record.cost]
    if not costs:
        return None
    return _ratio(sum(cost[name] * cost["seconds"] for cost in costs), sum(cost["seconds"] for cost in costs))


def running(trace: Trace) -> list[int]:
    """How many requests run, at each step that computes. A finished row of a padded batch runs no more."""
    inside: set[str] = set()
    counts = []
    for record in trace:
        computing = {work.id for work in record.work if work.kind != "wasted"}
        ended = {id for id, _ in record.finished}
        inside -= {preemption.id for preemption in record.preempted}
        inside |= computing
        if record.work:
            counts.append(len(inside - (ended - computing)))  # who was aborted before this step is not in it
        inside -= ended
    return counts


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return _ratio(sum(values), len(values))
