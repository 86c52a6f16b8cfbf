"""Seeded workloads: who asks for how much, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from math import exp, isfinite, log
from random import Random
from statistics import mean, pstdev
from typing import Any

from minibatcher.engine import Engine
from minibatcher.measure.metrics import Percentiles
from minibatcher.request import Request
from minibatcher.trace import Trace

Draw = Callable[[Random], int]  # a length in tokens


@dataclass(frozen=True)
class Job:
    """A prompt, and how many tokens its answer has: every engine that serves it does the same amount of work.

    prompt_token_ids: where only their number matters, a range, which takes no memory. arrival: seconds.
    """

    prompt_token_ids: Sequence[int]
    output_len: int
    arrival: float = 0.0


def lognormal(
    seed: int,
    vocab_size: int,
    n: int = 24,
    prompt_median: float = 25,
    output_median: float = 16,
    sigma: float = 1.0,
    max_prompt: int = 300,
    max_output: int = 128,
) -> list[Job]:
    """n jobs of random tokens whose lengths are log-normal: most are short, a few are very long, as people's are.

    sigma: of the logarithm of a length; at 1.0 one length in six is beyond 2.7 times the median. The same seed gives
    the same jobs.
    """
    draw = Random(seed)
    prompt, output = _lognormal(prompt_median, sigma, max_prompt), _lognormal(output_median, sigma, max_output)
    lengths = [(prompt(draw), output(draw)) for _ in range(n)]
    return [Job([draw.randrange(vocab_size) for _ in range(prompt)], output) for prompt, output in lengths]


def synthetic(n: int, arrivals: Iterable[float], prompt: Draw, output: Draw, seed: int = 0) -> list[Job]:
    """n jobs with lengths drawn independently. arrivals: at least n times."""
    draw = Random(f"lengths {seed}")
    return [Job(range(prompt(draw)), output(draw), time) for time in islice(arrivals, n)]


def resampled(jobs: Sequence[Job], n: int, arrivals: Iterable[float], seed: int = 0) -> list[Job]:
    """n jobs drawn from others with replacement (an empirical distribution), each prompt with its own output."""
    if not jobs:
        raise ValueError("there are no jobs to draw from: give at least 1")
    draw = Random(f"jobs {seed}")
    return [replace(draw.choice(jobs), arrival=time) for time in islice(arrivals, n)]


# -- lengths ----------------------------------------------------------------------------------------------------------


def lengths(text: str) -> Draw:
    """`512`: always; `100..900`: each as often; `lognormal:500:1.0`: the median, and sigma of the logarithm.

    Raises ValueError for anything else, and for lengths below 1.
    """
    kind, *figures = text.split(":")
    try:
        if kind == "lognormal" and len(figures) in (1, 2):
            median, sigma = float(figures[0]), float(figures[1]) if figures[1:] else 1.0
            if median < 1 or not isfinite(median) or not 0 <= sigma <= 5:
                raise ValueError
            return _lognormal(median, sigma)
        first, last = (int(figure) for figure in (text.split("..") if ".." in text else (text, text)))
        if not 1 <= first <= last:
            raise ValueError
        return lambda draw: draw.randint(first, last)
    except ValueError:
        raise ValueError(
            f"{text!r} is no distribution of lengths: write 512 (always), 100..900 (each as often) or "
            "lognormal:500:1.0 (median, and sigma of the logarithm, from 0 to 5); all lengths are 1 or more"
        ) from None


def at_most(most: int, draw: Draw) -> Draw:
    """The same lengths, those above `most` cut to it."""
    return lambda random: min(most, draw(random))


def _lognormal(median: float, sigma: float, most: float = float("inf")) -> Draw:
    return lambda draw: int(min(most, max(1, round(exp(draw.gauss(log(median), sigma))))))


# -- arrivals ---------------------------------------------------------------------------------------------------------

ARRIVALS = ("poisson", "steady", "burst", "at-once")


def arrivals(kind: str, rate: float, seed: int = 0, burst: int = 8) -> Iterator[float]:
    """Times without end, in seconds, `rate` a second on average.

    poisson: each is independent of the others. steady: at equal distances. burst: `burst` at a time, the bursts
    poisson. at-once: all at 0, whatever the rate. Raises ValueError for another kind, and for a rate not above 0.
    """
    if kind not in ARRIVALS:
        raise ValueError(f"unknown arrivals {kind!r}: choose from {', '.join(ARRIVALS)}")
    if not (rate > 0 and isfinite(rate)) or burst < 1:
        raise ValueError(f"rate={rate}, burst={burst}: a rate is above 0 requests/s, and a burst is 1 request or more")
    return _arrivals(kind, rate, Random(f"arrivals {seed}"), burst)


def _arrivals(kind: str, rate: float, draw: Random, burst: int) -> Iterator[float]:
    together = burst if kind == "burst" else 1
    time = 0.0
    while True:
        for _ in range(together):
            yield time
        if kind == "steady":
            time += 1 / rate
        elif kind != "at-once":
            time += draw.expovariate(rate / together)


def at_rate(jobs: Sequence[Job], rate: float) -> list[Job]:
    """The same jobs in the same order and pattern, their times stretched so that `rate` arrive a second."""
    if not (rate > 0 and isfinite(rate)):
        raise ValueError(f"rate={rate} is not allowed: it is requests/s, above 0")
    own = describe(jobs).rate
    if not own:
        raise ValueError(
            f"these {len(jobs)} jobs arrive at one moment, so their rate cannot be changed: use arrivals()"
        )
    return [replace(job, arrival=job.arrival * own / rate) for job in jobs]


def closed_loop(engine: Engine, requests: Iterable[Request], clients: int, think_s: float = 0.0) -> Trace:
    """Each client sends its next request `think_s` seconds after its last one has ended: never more than `clients`
    are in the engine, however slow it is. (Arrivals know nothing of the engine, and pile up when it is slow: the
    number of clients is not a rate.) The requests' own arrivals are not looked at. Returns the trace.
    """
    if clients < 1 or not think_s >= 0:
        raise ValueError(f"clients={clients}, think_s={think_s}: 1 client or more, thinking for 0 seconds or more")
    trace, todo = engine.new_trace(), iter(requests)
    for request in islice(todo, clients):
        request.arrival = engine.clock.now()
        engine.add(request)
    while engine.has_work:
        for _ in engine.step().finished:
            for request in islice(todo, 1):
                request.arrival = engine.clock.now() + think_s
                engine.add(request)
    return trace


# -- a workload in numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Description:
    """rate: requests/s between the first and the last. burstiness: the standard deviation of the gaps between two
    arrivals over their mean: 0 is steady, 1 is Poisson, more comes in bursts. Both are 0 where all arrive at once.
    """

    requests: int
    seconds: float
    rate: float
    burstiness: float
    prompt_tokens: int
    output_tokens: int
    prompt: Percentiles
    output: Percentiles
    longest: int  # prompt and output of one request, in tokens

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(jobs: Sequence[Job]) -> Description:
    """Raises ValueError for no jobs at all."""
    if not jobs:
        raise ValueError("the workload is empty: it needs at least 1 request")
    prompts, outputs = [len(job.prompt_token_ids) for job in jobs], [job.output_len for job in jobs]
    times = sorted(job.arrival for job in jobs)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    seconds = times[-1] - times[0]
    return Description(
        requests=len(jobs),
        seconds=seconds,
        rate=len(gaps) / seconds if seconds else 0.0,
        burstiness=pstdev(gaps) / mean(gaps) if seconds else 0.0,
        prompt_tokens=sum(prompts),
        output_tokens=sum(outputs),
        prompt=Percentiles.of(prompts),
        output=Percentiles.of(outputs),
        longest=max(map(sum, zip(prompts, outputs, strict=True))),
    )
