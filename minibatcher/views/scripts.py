"""What the lecture demos show, each for the values of its controls. No figure in its words is typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from html import escape
from statistics import median
from typing import Any

from minibatcher.measure.architectures import architecture
from minibatcher.measure.costs import roofline
from minibatcher.measure.gpus import gpu
from minibatcher.measure.metrics import Summary, goodput, requests, summary
from minibatcher.measure.policies import pool_shares
from minibatcher.measure.shapes import decodes
from minibatcher.measure.simulator import build_simulated, simulated_requests
from minibatcher.measure.workloads import Job, arrivals, lengths, synthetic
from minibatcher.stages import build_engine
from minibatcher.trace import Trace
from minibatcher.views.frame import choice, slider, table, text

Draw = Callable[[float], Any]  # (size of the letters in points) -> a Picture


@dataclass
class Played:
    """What a scene shows for its controls. In HTML: story: told beforehand. answer, notes: afterwards.

    traces: one, or two to compare; or a picture. look: how the timeline opens.
    """

    story: str
    answer: str
    notes: list[str]
    traces: list[Trace] = field(default_factory=list)
    picture: Draw | None = None
    look: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """controls: made anew for each opening. play: what to show for their values; it raises ValueError for bad ones."""

    title: str
    question: str
    controls: Callable[[], dict[str, Any]]
    play: Callable[..., Played]
    unit: str = ""
    choices: tuple[str, ...] = ()


# -- why-batch --------------------------------------------------------------------------------------------------------

H100, HERE = "H100 with an 8B model", "this machine"
BATCHES = (1, 4, 16, 64)  # measured, on this machine
CONTEXT = 500


def why_batch(batch: int, machine: str) -> Played:
    if machine == HERE:
        if batch not in BATCHES:
            raise ValueError(f"batch={batch}: this machine is measured with {', '.join(map(str, BATCHES))} rows")
        name, seconds = measured()
        story = f"{name} on this machine, measured: steps in which each row decodes one token, at context 16 to 24."
        more = f"Medians of {STEPS} steps, measured here just now; another program that runs meanwhile disturbs them."
    else:
        costs = roofline(gpu("h100"), architecture("llama-3.1-8b"))
        shapes = {rows: decodes(rows, CONTEXT) for rows in (*BATCHES, 256, 1024)}
        seconds = {rows: costs.step(shape)["seconds"] for rows, shape in shapes.items()}
        story = f"Llama-3.1-8B on a modelled H100 (modelled time): each row decodes one token, at context {CONTEXT}."
        more = (
            f"To read the weights takes {1000 * costs.weights:.2f} ms, whatever the batch. To compute a row takes "
            f"{1e6 * (costs.token + costs.sample):.1f} us, so it hides behind the reading up to "
            f"{costs.weights / (costs.token + costs.sample):.0f} rows. What a row adds is the reading of its own keys "
            f"and values: {1e6 * costs.kv * CONTEXT:.1f} us."
        )
    one, many = seconds[1], seconds[batch]
    story += f" A batch of 1 takes {1000 * one:.3g} ms a step; how long does a batch of {batch} take?"
    answer = (
        f"<p>A step of {batch} takes {1000 * many:.3g} ms: <b>{many / one:.2f} times</b> a step of 1, for {batch} "
        f"times the tokens. {1 / one:,.0f} tokens/s become {batch / many:,.0f}.</p>"
    )
    notes = [
        f"The usual answer is {batch} times. A step of 1 reads all weights for a single row; a step of {batch} reads "
        "them once for all.",
        more,
        "Show both machines: a CPU computes slowly, so there even a few rows cost more than the reading.",
    ]
    return Played(story, answer, notes, picture=partial(_curves().step_times, seconds, batch))


STEPS = 8  # of decodes that are timed, for each batch


@cache
def measured() -> tuple[str, dict[int, float]]:
    """The model that MINIBATCHER_MODEL names, or smollm2: its name, and the seconds of a decode step by its rows."""
    from minibatcher.model.load import load  # torch, where a real model is asked for

    loaded, seconds = load(), {}
    for rows in BATCHES:
        engine = build_engine("paged", loaded, max_num_seqs=rows, max_model_len=32)
        trace = engine.run(simulated_requests([Job(range(16), STEPS + 1)] * rows))
        seconds[rows] = median(r.t1 - r.t0 for r in trace if r.work and all(w.kind == "decode" for w in r.work))
    return escape(loaded.name), seconds


# -- slow-guest -------------------------------------------------------------------------------------------------------

TIMES = 4


def slow_guest(lanes: int, outputs: str) -> Played:
    guests = [int(part) if part.strip().isdecimal() else 0 for part in outputs.split(",")]
    if not all(1 <= guest <= 100 for guest in guests) or len(guests) > 8:
        raise ValueError(f"outputs={outputs!r}: write at most 8 lengths of 1 to 100 tokens, such as 40,4,4,4")
    jobs = [Job(range(10), output) for output in guests * TIMES]
    static, iteration = traces = [
        build_simulated(stage, max_num_seqs=lanes, max_model_len=128).run(simulated_requests(jobs))
        for stage in ("static", "iteration")
    ]
    before, after = summary(static), summary(iteration)
    busy = [len(record.work) for record in iteration]
    tail = next((i for i, _ in enumerate(busy) if max(busy[i:]) < lanes), len(busy))
    story = (
        f"{lanes} lanes, and {len(jobs)} requests that arrive together: outputs of {', '.join(map(str, guests))} "
        f"tokens, {TIMES} times over. Static batching takes {lanes} at a time; the other way, whoever ends "
        "leaves at once and the next one joins."
    )
    answer = (
        f"<p>Static: <b>{before.steps} steps</b>. Scheduled at every step: <b>{after.steps}</b>, and "
        f"{before.seconds / after.seconds:.2f} times as fast. Its idle tail: the last {len(busy) - tail} steps.</p>"
    )
    total = sum(guests) * TIMES
    notes = [
        f"Static: each batch lasts as long as its longest guest, and the {-(-len(jobs) // lanes)} batches add up to "
        f"{before.steps} steps. In {before.wasted_row_steps} of the {before.wasted_row_steps + before.useful_row_steps}"
        " row-steps the row has finished and still computes.",
        f"Scheduled at every step: {total} tokens on {lanes} lanes cannot take fewer than {-(-total // lanes)} steps, "
        f"and it takes {after.steps}. No lane idles while anybody waits.",
        f"The tail: from step {tail} on nobody waits and fewer than {lanes} lanes work. If the lengths were known, the "
        "long ones would go first; a server does not know them."
        if tail < len(busy)
        else "There is no tail: all lanes work to the end.",
    ]
    return Played(story, answer, notes, traces)


# -- how-many-fit -----------------------------------------------------------------------------------------------------

POOL, LONGEST, PROMPT, BLOCK, CROWD = 1024, 256, 20, 16, 32
KEPT: dict[str, tuple[str, dict[str, Any]]] = {  # what the table calls it -> stage, settings
    f"ranges of {LONGEST}": ("iteration", {"reserve": "max"}),
    "ranges by max_tokens": ("iteration", {"reserve": "max_tokens"}),
    "pages, reserved": ("paged", {}),
    "pages, on demand": ("preemptive", {}),
}


def how_many_fit(max_tokens: int, output: int) -> Played:
    if output > max_tokens:
        raise ValueError(f"output={output}: max_tokens={max_tokens} ends an answer, so it is at most that long")
    found: dict[str, tuple[Summary, dict[str, float]]] = {}
    for name, (stage, settings) in KEPT.items():
        engine = build_simulated(stage, max_num_seqs=CROWD, max_model_len=LONGEST, num_blocks=POOL // BLOCK, **settings)
        trace = engine.run(simulated_requests([Job(range(PROMPT), output)] * CROWD, max_tokens))
        found[name] = summary(trace), pool_shares(trace)
    rows = [
        (name, f"{s.max_running}", f"{s.mean_running:.1f}", f"{shares['used']:.0%}", f"{s.preemptions}", f"{s.steps}")
        for name, (s, shares) in found.items()
    ]
    story = (
        f"A pool of {POOL:,} tokens; max_model_len is {LONGEST}. {CROWD} requests wait: prompts of {PROMPT} tokens, "
        f"max_tokens {max_tokens}; the answers turn out to have {output}. How many run at once with ranges of "
        "max_model_len, with ranges by max_tokens, with pages reserved for max_tokens, and with pages on demand?"
    )
    asked, blocks = -(-(PROMPT + max_tokens) // BLOCK), POOL // BLOCK
    ranges, by_tokens, reserved, demand = (s for s, _ in found.values())
    notes = [
        f"Ranges of {LONGEST}: {POOL} / {LONGEST}, so {ranges.max_running}.",
        f"By max_tokens: {PROMPT} + {max_tokens} tokens are {asked} of {blocks} blocks of {BLOCK}: "
        f"{by_tokens.max_running} ranges, and as many ({reserved.max_running}) with pages: reserved pages only end the "
        "holes, and none appear while all are equally long.",
        f"On demand a prompt takes {-(-PROMPT // BLOCK)} blocks, so {demand.max_running} start (the watermark keeps a "
        f"block free). They grow: {demand.preemptions} preemptions, and {demand.mean_running:.1f} run on average. "
        "Growth on demand is the gain, and preemption is its price.",
    ]
    curve = {name: (s.max_running, s.mean_running, shares) for name, (s, shares) in found.items()}
    heads = ("", "at once, at most", "mean", "KV used", "preemptions", "steps")
    return Played(story, table(heads, rows), notes, picture=partial(_curves().at_once, curve))


# -- pasted-contract --------------------------------------------------------------------------------------------------

STREAMS, CONTRACT, PASTED_AT = 8, 2000, 0.1
NO_BUDGET = "none"


def pasted_contract(budget: int | str, x: str) -> Played:
    traces = [pasted(None)] if budget == NO_BUDGET else [pasted(None), pasted(int(budget))]
    rows, gaps, firsts = [], [], []
    for trace, name in zip(traces, ("in one piece", f"under a budget of {budget}"), strict=False):
        *streams, contract = requests(trace).values()
        chunks = sum(any(work.id == str(STREAMS) and work.kind == "prefill" for work in r.work) for r in trace)
        gaps.append(1000 * max(max(stream.itls) for stream in streams))
        firsts.append(1000 * (contract.ttft or 0.0))
        typical = median(itl for stream in streams for itl in stream.itls)
        rows.append((name, f"{chunks}", f"{firsts[-1]:.1f} ms", f"{gaps[-1]:.1f} ms", f"{1000 * typical:.1f} ms"))
    heads = ("the contract's prompt", "in steps", "its TTFT", "longest gap of a stream", "median gap")
    story = (
        f"{STREAMS} streams decode. After {PASTED_AT:g} s somebody pastes a contract of {CONTRACT:,} tokens (H100, 8B, "
        "modelled time). "
    ) + (
        "Its prompt is computed in one piece. Find the stall: first by step, then by time."
        if budget == NO_BUDGET
        else f"A: its prompt in one piece. B: a budget of {budget} tokens a step, decodes first."
    )
    notes = [
        f"In one piece: the step with the contract takes {gaps[0]:.1f} ms, and every stream waits for it. By step it "
        "is one column like the others; by time it is the widest."
    ]
    if len(traces) > 1:
        notes += [
            f"Under the budget {budget} - {STREAMS} decodes leave {int(budget) - STREAMS} tokens for the contract: "
            f"{CONTRACT:,} tokens take {rows[1][1]} steps. A stream's longest gap falls from {gaps[0]:.1f} ms to "
            f"{gaps[1]:.1f} ms.",
            f"The contract pays: its first token comes after {firsts[1]:.1f} ms in place of {firsts[0]:.1f} ms.",
        ]
    else:
        notes.append("Then set a budget of 128: whose time to first token pays? The usual answer is: nobody's.")
    begin = next(i for i, record in enumerate(traces[0]) if str(STREAMS) in record.admitted)
    return Played(story, table(heads, rows), notes, traces, look={"x": x, "cursor": begin})


@cache
def pasted(budget: int | None) -> Trace:
    """Without a budget the prompt is computed in one piece."""
    jobs = [Job(range(8), 60)] * STREAMS + [Job(range(CONTRACT), 2, PASTED_AT)]
    stage = "chunked" if budget else "kernel"
    settings: dict[str, Any] = {"max_num_batched_tokens": budget} if budget else {}
    engine = build_simulated(stage, max_num_seqs=STREAMS + 1, max_model_len=2048, **settings)
    return engine.run(simulated_requests(jobs))


# -- full-is-not-fast -------------------------------------------------------------------------------------------------

LANES = (4, 8, 12, 16, 32)
GUESTS, EXPECTED, PAGES, TTFT, ITL = 32, 16, 32, 0.5, 0.02
HIGH = 0.3  # a watermark


def full_is_not_fast(longer: float, watermark: float) -> Played:
    found = {lanes: crowded(lanes, longer, watermark) for lanes in LANES}
    best, full = max(found, key=lambda lanes: found[lanes][0]), max(LANES)
    good, fast, preemptions, again = found[full]
    kept, _, fewer, _ = crowded(full, longer, HIGH)
    rows = [(f"{n}", f"{g:.1f}", f"{t:,.0f}", f"{p}", f"{again:,}") for n, (g, t, p, again) in found.items()]
    story = (
        f"A pool of {PAGES * BLOCK} tokens, and {GUESTS} requests, 400 a second (H100, 8B, modelled time). Outputs of "
        f"about {EXPECTED} tokens were expected, and they turn out {longer:g} times as long. Goodput counts the "
        f"requests/s whose first token comes within {TTFT:g} s and whose gaps stay within {1000 * ITL:.0f} ms."
    )
    notes = [
        f"Goodput is best with {best} lanes: {found[best][0]:.1f} requests/s and {found[best][1]:,.0f} tokens/s. With "
        f"{full} it is {good:.1f}, at {fast:,.0f} tokens/s.",
        f"With {full} lanes there are {preemptions} preemptions, and {again:,} tokens are computed again. That costs "
        "little throughput, since they ride along with the reading of the weights; but the victims' readers wait.",
        f"A watermark of {HIGH:g} leaves that share of the pool free when somebody is admitted: with {full} lanes "
        f"{fewer} preemptions, and a goodput of {kept:.1f} requests/s.",
    ]
    curve = [(g, t, p) for g, t, p, _ in found.values()]
    heads = ("lanes", "goodput, requests/s", "output tokens/s", "preemptions", "recomputed tokens")
    return Played(story, table(heads, rows), notes, picture=partial(_curves().overload, LANES, curve))


@cache
def crowded(lanes: int, longer: float, watermark: float) -> tuple[float, float, int, int]:
    """Goodput, output tokens/s, preemptions, recomputed tokens."""
    output = lengths(f"{round(EXPECTED * longer / 2)}..{round(EXPECTED * longer * 3 / 2)}")
    jobs = synthetic(GUESTS, arrivals("poisson", 400, 1), lengths("16"), output, 1)
    engine = build_simulated("preemptive", max_num_seqs=lanes, max_model_len=128, num_blocks=PAGES, watermark=watermark)
    trace = engine.run(simulated_requests(jobs))
    figures = summary(trace)
    good = goodput(trace, ttft=TTFT, itl=ITL)
    return good, figures.output_tokens_per_s, figures.preemptions, figures.recomputed_tokens


def _curves() -> Any:
    from minibatcher.views import curves  # numpy and matplotlib, not before a scene that draws is opened

    return curves


SCENES: dict[str, Script] = {
    "why-batch": Script(
        "Why batch?",
        "How many times as long as a step of 1?",
        lambda: {"batch": slider("batch", (4, 16, 64, 256), 64), "machine": choice("machine", (H100, HERE), H100)},
        why_batch,
        unit="times",
    ),
    "slow-guest": Script(
        "The slow guest",
        "How many steps, when they are scheduled at every step? And static?",
        lambda: {
            "lanes": slider("lanes", range(1, 9), 4),
            "outputs": text("outputs", "40,4,4,4"),
        },
        slow_guest,
        unit="steps",
    ),
    "how-many-fit": Script(
        "How many fit?",
        "How many run at once with pages on demand? And in the three other ways?",
        lambda: {
            "max_tokens": slider("max_tokens", (32, 64, 128, 236), 64),
            "output": slider("output", (8, 16, 30, 48, 64), 30),
        },
        how_many_fit,
        unit="requests",
    ),
    "pasted-contract": Script(
        "The pasted contract",
        "Under a token budget, whose time to first token pays?",
        lambda: {
            "budget": slider("budget", (NO_BUDGET, 1024, 512, 256, 128, 64), NO_BUDGET),
            "x": choice("axis", ("step", "time"), "step"),
        },
        pasted_contract,
        choices=("the streams'", "the contract's", "nobody's"),
    ),
    "full-is-not-fast": Script(
        "Full is not fast",
        "What does goodput do, as max_num_seqs rises?",
        lambda: {
            "longer": slider("outputs, times as long", (1, 1.5, 2, 2.5, 3), 2.5),
            "watermark": slider("watermark", (0, 0.01, 0.1, 0.2, HIGH), 0.01),
        },
        full_is_not_fast,
        choices=("it rises and stays", "it rises, then falls", "it falls"),
    ),
}
