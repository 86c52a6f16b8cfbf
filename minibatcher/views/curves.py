"""Pictures of whole runs: a workload, the load over time, a sweep, the ladder, where swapping begins to pay, and those
of the lecture demos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from minibatcher.measure.capacity import Capacity
from minibatcher.measure.metrics import Summary, running, span
from minibatcher.measure.workloads import Job, describe
from minibatcher.memory.giving_way import GivingWay
from minibatcher.trace import Trace
from minibatcher.views.figure import Picture
from minibatcher.views.states import INK, KV, PAPER

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#882255", "#56B4E9", "#A6761D")  # Okabe and Ito's, and two more
DASHES = ("-", "--", "-.", ":")  # hue alone carries nothing
MARKERS = "os^DvP"
BINS = 200  # points of a curve over time


def workload(jobs: Sequence[Job], title: str = "", theme: str = "light") -> Picture:
    """Lengths of prompts and answers, and arrivals over time."""
    about = describe(jobs)
    with rc_context(_style(theme)):
        figure = Picture(figsize=(9, 2.6), layout="constrained")
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


def over_time(traces: Mapping[str, Trace], theme: str = "light") -> Picture:
    """Requests that run and wait, and the pool, over time; one curve for each trace."""
    with rc_context(_style(theme)):
        figure = Picture(figsize=(9, 4.5), layout="constrained")
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


def sweep(name: str, values: Sequence[Any], found: Sequence[Summary], title: str = "", theme: str = "light") -> Picture:
    """Throughput, TTFT and ITL against what was varied."""
    x = np.arange(len(values))
    with rc_context(_style(theme)):
        figure = Picture(figsize=(9, 2.8), layout="constrained")
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


def frontier(
    runs: Mapping[str, Sequence[Summary]], limits: Mapping[str, float] | None = None, theme: str = "light"
) -> Picture:
    """What throughput costs in latency: a curve for each name, and on it a point for each load, from light to heavy.

    Each curve is thinner than the one before, so that both can be seen where one lies on the other.

    limits: objectives in seconds (`ttft_p99`, `itl_p99` and so on), each drawn as a line where its time is shown.
    """
    limits = limits or {}
    with rc_context(_style(theme)):
        figure = Picture(figsize=(9, 3.2), layout="constrained")
        for ax, label, scale, pick in zip(
            figure.subplots(1, 2), ("TTFT p99 (s)", "ITL p99 (ms)"), (1, 1000), ("ttft", "itl"), strict=True
        ):
            for number, (name, found) in enumerate(runs.items()):
                over = (len(runs) - 1 - number) ** 0.5
                look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": name}
                look |= {"linestyle": DASHES[number % len(DASHES)], "linewidth": 1 + 1.3 * over}
                look |= {"marker": MARKERS[number % len(MARKERS)], "markersize": 4 + 2.2 * over}
                heights = [scale * (getattr(s, pick).p99 or np.nan) for s in found]
                ax.plot([s.output_tokens_per_s for s in found], heights, **look)
            for limit in (seconds for name, seconds in limits.items() if name.startswith(pick)):
                ax.axhline(scale * limit, color=INK[theme], linestyle=":", linewidth=1)
            ax.set_yscale("log")
            ax.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("{x:g}")
            ax.set_ylabel(label)
            ax.set_xlabel("output tokens/s")
        figure.axes[0].legend(frameon=False)
    return figure


def ladder(found: Mapping[str, Capacity], title: str, theme: str = "light") -> Picture:
    """What each stage carries under the same objectives, with its 95% confidence interval and what limits it."""
    with rc_context(_style(theme)):
        figure = Picture(figsize=(9, 0.5 + 0.4 * len(found)), layout="constrained")
        ax = figure.subplots()
        y = np.arange(len(found))
        rates = np.array([capacity.rate for capacity in found.values()])
        errors = [[c.rate - max(0.0, c.low) for c in found.values()], [c.high - c.rate for c in found.values()]]
        ax.barh(y, rates, color=COLOURS[0], height=0.6, xerr=errors, error_kw={"ecolor": INK[theme], "capsize": 3})
        for place, capacity in zip(y, found.values(), strict=True):
            text = f"{capacity.rate:.3g} requests/s, {capacity.figures.output_tokens_per_s:,.0f} tokens/s"
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
) -> Picture:
    """Seconds that a victim costs, by its tokens: computed again, and copied to the CPU and back."""
    tokens = np.arange(block_size, 4096 + 1, block_size)
    with rc_context(_style(theme)):
        columns = min(4, len(devices))
        rows = -(-len(devices) // columns)
        figure = Picture(figsize=(9, 2.2 * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
        for ax, (name, costs) in zip(axes, devices.items(), strict=False):
            again = np.array([costs.recompute_s(int(n), decodes, budget) for n in tokens]) * 1000
            moved = np.array([costs.swap_s(-(-int(n) // block_size)) for n in tokens]) * 1000
            ax.plot(tokens, again, DASHES[0], color=COLOURS[0], label="recompute")
            ax.plot(tokens, moved, DASHES[1], color=COLOURS[1], label="swap")
            ax.set_title(f"{name}: {_swaps(tokens, again > moved)}")
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_ylim(bottom=0.3 * moved[0])  # below, a recomputed victim costs nothing that one would see
        _outer(figure.axes, columns, "tokens of the victim", "ms")
        figure.axes[0].legend(frameon=False)
    return figure


def _swaps(tokens: np.ndarray, cheaper: np.ndarray) -> str:
    """From how many tokens on it is cheaper to swap, and from where it is now and then: recompute goes up in steps."""
    if not cheaper[-1]:
        return "recompute"
    last = len(tokens) - np.argmin(cheaper[::-1]) if not cheaper.all() else 0
    first = np.argmax(cheaper)
    return f"swap from {tokens[last]:,}" + (f" (now and then from {tokens[first]:,})" if first < last else "")


# -- of the lecture demos; points: the size of the letters, 8 on a page and 12 on a projector --------------------------


def step_times(seconds: Mapping[int, float], batch: int, points: float = 8, theme: str = "light") -> Picture:
    """Milliseconds a step, and tokens/s, by the rows of a batch; one batch is pointed out, beside a batch of 1."""
    rows = np.array(list(seconds))
    times = np.array(list(seconds.values()))
    with rc_context(_letters(theme, points)):
        figure, left, right = _pair(points)
        for ax, heights, label in ((left, 1000 * times, "ms a step"), (right, rows / times, "tokens/s")):
            ax.plot(rows, heights, "o-", color=COLOURS[0])
            at = [int(np.flatnonzero(rows == row)[0]) for row in dict.fromkeys((1, batch))]
            ax.plot(rows[at], heights[at], "o", color=COLOURS[3], markersize=0.9 * points)
            for i in at:
                words = f"{heights[i]:,.3g}" if heights[i] < 100 else f"{heights[i]:,.0f}"
                place = (-0.4 * points, 0.7 * points)  # above the curve, and not on the dashed line
                ax.annotate(words, (rows[i], heights[i]), place, "data", "offset points", ha="right", weight="bold")
            ax.set_xscale("log", base=2)
            ax.set_xticks(rows, [str(row) for row in rows], minor=False)
            ax.margins(x=0.18)
            ax.set_ylim(0, 1.25 * max(heights))
            ax.set_xlabel("rows of the batch")
            ax.set_title(label)
        worst = times[0] * rows * 1000
        left.plot(rows, worst, DASHES[1], color=INK[theme], label="one row after the other")
        left.legend(frameon=False, loc="upper right", fontsize=0.85 * points)
    return figure


def at_once(
    found: Mapping[str, tuple[int, float, Mapping[str, float]]], points: float = 8, theme: str = "light"
) -> Picture:
    """How many requests run at once at most and on average, and what fills the pool, for each way to keep it.

    found: (at most, on average, shares of the pool as `policies.pool_shares` gives them).
    """
    fills = {"used": (KV, ""), "reserved": (COLOURS[1], "..."), "internal": (COLOURS[3], "xxx")}
    fills["external"] = (COLOURS[4], "///")
    with rc_context(_letters(theme, points) | {"hatch.linewidth": 0.6}):
        figure, left, right = _pair(points, names=14, sharey=True)
        y = np.arange(len(found))
        most, mean = (np.array([values[i] for values in found.values()], float) for i in (0, 1))
        left.barh(y, most, 0.6, color=COLOURS[0])
        left.plot(mean, y, "D", color=PAPER[theme], markeredgecolor=INK[theme], markersize=0.6 * points)
        for place, count in zip(y, most, strict=True):
            left.annotate(f"{count:.0f}", (count, place), (4, 0), textcoords="offset points", va="center")
        left.set_yticks(y, list(found))
        left.invert_yaxis()
        left.set_xlim(0, 1.15 * max(most))
        left.set_title("run at once (diamond: mean)")
        begin = np.zeros(len(found))
        for name, (colour, hatch) in fills.items():
            shares = np.array([values[2][name] for values in found.values()])
            if not shares.any():
                continue
            look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": PAPER[theme], "label": name}
            right.barh(y, shares, 0.6, begin, **look)
            begin += shares
        right.set_xlim(0, 1)
        right.set_title("share of the pool, mean")
        right.tick_params(left=False)
        figure.legend(loc="lower right", ncols=4, frameon=False, handlelength=1)
    return figure


def overload(
    lanes: Sequence[int], found: Sequence[tuple[float, float, int]], points: float = 8, theme: str = "light"
) -> Picture:
    """Goodput and tokens/s, each as a share of its best, and preemptions, by the number of lanes.

    found: (goodput, output tokens/s, preemptions) for each number of lanes.
    """
    x = np.arange(len(lanes))
    with rc_context(_letters(theme, points)):
        figure, left, right = _pair(points)
        for number, label in enumerate(("goodput", "output tokens/s")):
            heights = np.array([values[number] for values in found])
            look: dict[str, Any] = {
                "color": COLOURS[2 - 2 * number],
                "linestyle": DASHES[number],
                "marker": "os"[number],
            }
            left.plot(x, heights / max(1e-9, *heights), label=label, **look)
        left.set_ylim(0, 1.1)
        left.set_title("share of its best")
        left.legend(frameon=False, loc="lower right")
        right.bar(x, [values[2] for values in found], color=COLOURS[3])
        right.set_ylim(0, 1.1 * max(1, *(values[2] for values in found)))
        right.set_title("preemptions")
        for ax in (left, right):
            ax.set_xticks(x, [str(count) for count in lanes])
            ax.set_xlabel("lanes (max_num_seqs)")
    return figure


def _letters(theme: str, points: float) -> dict[str, Any]:
    return _style(theme) | {"font.size": points, "axes.titlesize": 1.1 * points}


def _pair(points: float, names: int = 5, **more: Any) -> tuple[Picture, Axes, Axes]:
    """Two axes side by side. names: letters of the names on the left.

    The margins are computed here: matplotlib's own layout takes as long as drawing, and a control must answer at once.
    """
    figure = Picture(figsize=(9, 3), dpi=120)
    em = points / 72  # inches
    left, right, bottom, top = (0.9 * names * em) / 9, 1 - em / 9, 3.8 * em / 3, 1 - 2.2 * em / 3
    margins = {"left": left, "right": right, "bottom": bottom, "top": top, "wspace": 0.06 + 0.01 * points}
    first, second = figure.subplots(1, 2, gridspec_kw=margins, **more)
    return figure, first, second


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
