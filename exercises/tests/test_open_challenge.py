"""The open challenge: the invariants of an engine, and goodput on a modelled GPU beside the package's stages."""

import os
import random
from dataclasses import replace
from functools import partial

from minibatcher.grading import Wrong, exercise
from minibatcher.grading.toys import answers, engine, request
from minibatcher.measure.metrics import goodput
from minibatcher.measure.simulator import build_simulated, simulated, simulated_requests
from minibatcher.measure.workloads import arrivals, lengths, synthetic
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.stages import STAGES

# An instructor sets another seed, and the traces are hidden.
SEED = int(os.environ.get("MINIBATCHER_CHALLENGE_SEED", "1"))
BUDGET, LANES, NUM_BLOCKS = 12, 4, 12
OBJECTIVES = {"ttft": 1.0, "itl": 0.05}
PICTURE_SECONDS = 120.0


def small_runs(ex):
    """Sixty small workloads on a tight pool: (number, requests, engine)."""
    for number in range(60):
        draw = random.Random(f"{SEED} {number}")
        allocator = BlockAllocator(NUM_BLOCKS, 4, NUM_BLOCKS * 4)
        settings = {"max_num_seqs": LANES, "max_model_len": NUM_BLOCKS * 4, "max_num_batched_tokens": BUDGET}
        served = engine(ex.plain("MyScheduler")(allocator=allocator, **settings))
        requests = [
            request(f"r{i}", draw.randint(1, 24), draw.randint(1, 20), draw.choice([0, 0, 3.5, 9, 20]))
            for i in range(draw.randint(1, 8))
        ]
        served.add_all(requests)
        yield number, requests, served


def records(served):
    """(step, record) until nothing is left, or for as long as anybody could need."""
    for step in range(2000):
        if not served.has_work:
            return
        yield step, served.step()


@exercise("C.1", points=0, minutes=120)
class TestInvariants:
    """Your schedule()"""

    def test_every_step_holds_the_rules(self, ex):
        """after each step: the budget, the lanes, one owner a block, and room for all that is computed"""
        for number, _, served in small_runs(ex):
            for step, record in records(served):
                if broken := broken_rule(served.scheduler, record):
                    raise Wrong(f"workload {number}, step {step}: {broken}")

    def test_everybody_gets_the_right_answer(self, ex):
        """each request ends once, with the tokens that it would get alone"""
        for number, requests, served in small_runs(ex):
            ended = [id for _, record in records(served) for id, _ in record.finished]
            for one in requests:
                name = f"workload {number}: {one.request_id}"
                if ended.count(one.request_id) != 1:
                    raise Wrong(f"{name} ends {ended.count(one.request_id)} times")
                if one.finish_reason != "length":
                    raise Wrong(f"{name} ends with {one.finish_reason}: {one.error}")
                if one.output_token_ids != answers(one.prompt_token_ids, len(one.output_token_ids)):
                    raise Wrong(f"{name} gets other tokens than it would alone")


def broken_rule(scheduler, record):
    """In words; None when all hold."""
    tokens, running = sum(work.tokens for work in record.work), scheduler.running
    owned, free = [block for one in running for block in one.block_table], scheduler.allocator.free
    if tokens > BUDGET:
        return f"{tokens} tokens are computed, and the budget is {BUDGET}"
    if len({work.lane for work in record.work}) != len({work.id for work in record.work}):
        return "two requests have one lane"
    if len(running) > LANES:
        return f"{len(running)} run, in {LANES} lanes"
    if len(owned) != len(set(owned)) or len(owned) + free != NUM_BLOCKS:
        return f"{free} blocks are free and {len(owned)} owned, of {NUM_BLOCKS}"
    for one in running:
        if not 0 <= one.num_computed <= one.num_tokens or len(one.block_table) * 4 < one.num_computed:
            return f"{one.request_id} has computed {one.num_computed} of {one.num_tokens} tokens, in {one.block_table}"
    return None


OURS = ("paged", "chunked", "preemptive")
SETTINGS = {"max_num_seqs": 64, "max_model_len": 4096, "num_blocks": 1500}


def jobs(number):
    seed = SEED * 100 + number
    drawn = synthetic(
        300, arrivals("burst", 40, seed), lengths("lognormal:400:1.0"), lengths("lognormal:120:0.8"), seed
    )
    cut = [
        replace(job, prompt_token_ids=job.prompt_token_ids[:3000], output_len=min(job.output_len, 900)) for job in drawn
    ]
    return simulated_requests(cut, max_tokens=900)


def score(build):
    """Mean goodput over three traces, in requests/s."""
    return sum(goodput(build().run(jobs(number)), **OBJECTIVES) for number in range(3)) / 3


def picture(ex):
    """The scoreboard."""
    scores = {f"stage {name}": score(partial(build_simulated, name, **SETTINGS)) for name in OURS}
    scores["yours"] = score(partial(mine, ex.plain("MyScheduler")))
    rows = [f"    {name:<20}{value:>6.2f}" for name, value in sorted(scores.items(), key=lambda item: -item[1])]
    return "\n".join(["goodput on a modelled H100, in requests/s; 40 arrive:", "", *rows])


def mine(scheduler):
    """Stage 6 with the learner's scheduler in place of ours."""
    model = build_simulated("preemptive", **SETTINGS)
    stage = replace(STAGES["preemptive"], scheduler=scheduler)
    return simulated(stage, dict(model.trace.meta["settings"]), model.runner.costs, {})
