"""A load on the real model, to fit step times to: `minibatcher bench --costs`, and `simulate --fit` afterwards."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from minibatcher.clock import Clock
from minibatcher.measure.workloads import arrivals, at_most, closed_loop, lengths, synthetic
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import build_engine
from minibatcher.trace import Trace

# Not fewer than four: below, a CPU's matrix library takes other paths, which no roofline describes. (On the machine on
# which this was written, SmolLM2 steps of 1, 2, 3 and 4 rows take 63, 98, 119 and 89 ms.)
CLIENTS = (4, 6, 9, 11, 13, 15, 16)


class ProcessorClock(Clock):
    """Seconds in which this process computed; on a machine that others use too they are steadier than those on the
    wall, and with one thread about what a quiet machine takes. Waiting takes no time.
    """

    kind = "cpu"

    def __init__(self) -> None:
        self._zero = time.process_time()

    def now(self) -> float:
        return time.process_time() - self._zero

    def wait_until(self, t: float) -> None:
        self._zero -= max(0.0, t - self.now())


def measured(model: Any = "smollm2", *, seed: int = 0, clock: Clock | None = None) -> Trace:
    """Serve 4, 6, 9 ... 16 clients in turn, twice as many requests each time, at stage `chunked`: decodes of many batch
    sizes with prompts among them. Lengths are log-normal (prompts around 60 tokens, at most 400; outputs around 25, at
    most 120).

    model: as `build_engine` takes it. Returns one trace of all turns, each until its last request has arrived.
    """
    engine = build_engine("chunked", model, max_num_seqs=max(CLIENTS), max_num_batched_tokens=128, clock=clock)
    prompt, output = at_most(400, lengths("lognormal:60:1.0")), at_most(120, lengths("lognormal:25:1.0"))
    draw = Random(seed)
    trace = Trace(engine.trace.meta)
    for turn, clients in enumerate(CLIENTS):
        requests = [
            Request(
                [draw.randrange(engine.scheduler.vocab_size or 1) for _ in job.prompt_token_ids],
                SamplingParams(max_tokens=job.output_len, ignore_eos=True, temperature=0),
            )
            for job in synthetic(2 * clients, arrivals("at-once", 1.0), prompt, output, len(CLIENTS) * seed + turn)
        ]
        records = closed_loop(engine, requests, clients).records
        end = 1 + max(number for number, record in enumerate(records) if record.arrived)
        trace.records += records[3 if turn == 0 else 0 : end]  # the first calls of a model warm it up
    return trace
