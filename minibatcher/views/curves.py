"""Pictures of whole runs: a workload, the load over time, a sweep, the ladder, and where swapping begins to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minibatcher.measure.capacity import Capacity
from minibatcher.measure.metrics import Summary, running, span
from minibatcher.measure.workloads import Job, describe
from minibatcher.memory.giving_way import GivingWay
from minibatcher.trace import Trace
from minibatcher.views.states import INK, PAPER

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#882255", "#56B4E9", "#A6761D")  # Okabe and Ito's, and two more
DASHES = ("-", "--", "-.", ":")  # hue alone carries nothing
BINS = 200  # points of a curve over time


def workload(jobs: Sequence[Job], title: str = "", theme: str = "light") -> Figure:
    """Lengths of prompts and answers, and arrivals over time."""
    about = describe(jobs)
    with rc_context(_style(theme)):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        for ax, name, values in (
            (left, "prompt tokens", [len(job.prompt_token_ids) for job in jobs]),
            (middle, "output tokens", [job.output_len for job in jobs]),
        ):
            ax.hist(values, bins=np.geomspace(1, max(values) + 1, 40).tolist(), color=COLOURS[0])
            ax.set_xscale("log")
            ax.set_xlabel(f"{name} (median {np.median(values):.0f})")
            ax.set_ylabel("requests")
        arrivals = [job.arrival for job in jobs]
        right.hist(arrivals, bins=60, color=COLOURS[0])
        right.set_xlabel(f"seconds ({about.rate:.2f} requests/s, burstiness {about.burstiness:.1f})")
        right.set_ylabel("arrivals")
        figure.suptitle(title or f"{about.requests} requests")
    return figure


def over_time(traces: Mapping[str, Trace], theme: str = "light") -> Figure:
    """Requests that run and wait, and the pool, over time; one curve for each trace."""
    with rc_context(_style(theme)):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots(3, sharex=True)
        seconds = max(end - begin for begin, end in map(span, traces.values()))
        for number, (name, trace) in enumerate(traces.items()):
            steps = [record for record in trace if record.work]
            if not steps:
                raise ValueError(f"nothing was computed in the trace of {name!r}, so there is nothing to draw")
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)], "label": name}
            waiting = [1 + record.waiting.behind if record.waiting else 0 for record in steps]
            used = [record.kv["used"] / record.kv["total"] if record.kv else 0.0 for record in steps]
            curves: list[Sequence[float]] = [running(trace), waiting, used]
            for ax, values in zip(axes, curves, strict=True):
                ax.stairs(*_peaks(trace, values, seconds), **look)
        for ax, label in zip(axes, ("running", "waiting", "KV used, share"), strict=True):
            ax.set_ylabel(label)
            ax.set_ylim(bottom=0)
        virtual = any(trace.meta.get("clock") == "virtual" for trace in traces.values())
        axes[-1].set_xlabel("modelled seconds" if virtual else "seconds")
        axes[0].legend(frameon=False)
    return figure


def sweep(name: str, values: Sequence[Any], found: Sequence[Summary], title: str = "", theme: str = "light") -> Figure:
    """Throughput, TTFT and ITL against what was varied."""
    x = np.arange(len(values))
    with rc_context(_style(theme)):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        left.plot(x, [s.output_tokens_per_s for s in found], "o-", color=COLOURS[0])
        left.set_ylabel("output tokens/s")
        left.set_ylim(bottom=0)
        for ax, label, scale, pick in ((middle, "TTFT (s)", 1, "ttft"), (right, "ITL (ms)", 1000, "itl")):
            for number, percentile in enumerate(("p50", "p95", "p99")):
                heights = [scale * (getattr(getattr(s, pick), percentile) or np.nan) for s in found]
                ax.plot(x, heights, marker="o", linestyle=DASHES[number], color=COLOURS[number], label=percentile)
            ax.set_ylabel(label)
        middle.set_yscale("log")
        right.set_ylim(bottom=0)
        for ax in (left, middle, right):
            ax.set_xlabel(name)
            ax.set_xticks(x, [f"{value:g}" if isinstance(value, float) else str(value) for value in values])
        right.legend(frameon=False)
        figure.suptitle(title)
    return figure


def ladder(found: Mapping[str, Capacity], title: str, theme: str = "light") -> Figure:
    """What each stage carries under the same objectives, with its 95% confidence interval and what limits it."""
    with rc_context(_style(theme)):
        figure = Figure(figsize=(9, 0.5 + 0.4 * len(found)), layout="constrained")
        ax = figure.subplots()
        y = np.arange(len(found))
        rates = np.array([capacity.rate for capacity in found.values()])
        errors = [[c.rate - max(0.0, c.low) for c in found.values()], [c.high - c.rate for c in found.values()]]
        ax.barh(y, rates, color=COLOURS[0], height=0.6, xerr=errors, error_kw={"ecolor": INK[theme], "capsize": 3})
        for place, capacity in zip(y, found.values(), strict=True):
            text = f"{capacity.rate:.2g} requests/s, {capacity.figures.output_tokens_per_s:,.0f} tokens/s"
            limit = f"misses {', '.join(capacity.missed)}; {capacity.limit} {capacity.shares[capacity.limit]:.0%}"
            ax.annotate(
                f"{text}\n{limit}",
                (max(capacity.rate, capacity.high), place),
                (6, 0),
                "data",
                "offset points",
                va="center",
            )
        ax.set_yticks(y, list(found))
        ax.invert_yaxis()
        ax.set_xlim(0, 1.45 * max(max(c.rate, c.high) for c in found.values()))
        ax.set_xlabel("requests/s that meet the objectives")
        ax.set_title(title)
    return figure


def crossover(
    devices: Mapping[str, GivingWay], decodes: int, budget: int, block_size: int, theme: str = "light"
) -> Figure:
    """Seconds that a victim costs, by its tokens: computed again, and copied to the CPU and back."""
    tokens = np.arange(block_size, 4096 + 1, block_size)
    with rc_context(_style(theme)):
        columns = min(4, len(devices))
        rows = -(-len(devices) // columns)
        figure = Figure(figsize=(9, 2.2 * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
        for ax, (name, costs) in zip(axes, devices.items(), strict=False):
            again = np.array([costs.recompute_s(int(n), decodes, budget) for n in tokens]) * 1000
            moved = np.array([costs.swap_s(-(-int(n) // block_size)) for n in tokens]) * 1000
            ax.plot(tokens, again, DASHES[0], color=COLOURS[0], label="recompute")
            ax.plot(tokens, moved, DASHES[1], color=COLOURS[1], label="swap")
            cheaper = tokens[again > moved]
            begins = f"swap from {cheaper[0]}" if len(cheaper) else "recompute"
            ax.set_title(f"{name}: {begins}")
            ax.set_ylim(0, 1.2 * moved[-1])
        _outer(figure.axes, columns, "tokens of the victim", "ms")
        figure.axes[0].legend(frameon=False)
    return figure


def _outer(axes: Sequence[Axes], columns: int, x: str, y: str) -> None:
    for number, ax in enumerate(axes):
        if number % columns == 0:
            ax.set_ylabel(y)
        if number + columns >= len(axes):
            ax.set_xlabel(x)


def _peaks(trace: Trace, values: Sequence[float], seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """The largest value in each of BINS equal parts of the time, so that no peak is hidden; 0 where nothing ran."""
    begin = span(trace)[0]
    edges = np.linspace(0, seconds, BINS + 1)
    peaks = np.zeros(BINS)
    for record, value in zip((record for record in trace if record.work), values, strict=True):
        first, last = (min(BINS - 1, int((t - begin) / seconds * BINS)) for t in (record.t0, record.t1))
        peaks[first : last + 1] = np.maximum(peaks[first : last + 1], value)
    return peaks, edges


def _style(theme: str) -> dict[str, Any]:
    ink = dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK[theme])
    paper = dict.fromkeys(["figure.facecolor", "axes.facecolor"], PAPER[theme])
    plain = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "text.parse_math": False,
    }
    return {**ink, **paper, **plain, "font.size": 8, "axes.titlesize": 9, "lines.linewidth": 1.3, "lines.markersize": 3}
