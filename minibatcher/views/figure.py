"""A trace as a picture: lanes (or requests) by steps (or seconds), and strips of counts on the same axis."""

from __future__ import annotations

from io import BytesIO
from math import ceil, isqrt
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator

from minibatcher.measure.metrics import requests, span, summary
from minibatcher.trace import Trace
from minibatcher.views.device import busy_from, busy_share, busy_shares
from minibatcher.views.states import (
    CODE,
    INK,
    KV,
    OWNERS,
    PAPER,
    STATES,
    State,
    lanes_shown,
    owners,
    preemptions,
    shown,
)
from minibatcher.views.text import headline

By = Literal["lane", "request"]
X = Literal["step", "time"]
Theme = Literal["light", "dark"]
Legend = dict[str, Any]  # label -> what stands beside it

WIDTH = 11.0  # inches


class Picture(Figure):
    """A matplotlib Figure that shows itself in a notebook without pyplot (which callbacks of widgets can mix up)."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        FigureCanvasAgg(self).print_png(png)
        return png.getvalue()


def draw(trace: Trace, by: By = "lane", x: X = "step", theme: Theme = "light", *, strips: bool = True) -> Picture:
    """The picture of one trace.

    by: a row per lane, where idle time shows, or per request in order of arrival, where waiting shows. x: `step` gives
    every step the same width; `time` is in seconds since the trace began. strips: whether the counts stand below.
    Raises ValueError if nothing was computed.
    """
    return _figure([trace], [headline(trace)], by, x, theme, strips)


def compare(
    a: Trace, b: Trace, by: By = "lane", x: X = "step", theme: Theme = "light", *, strips: bool = True
) -> Picture:
    """Two traces of one workload, one above the other on one scale, with the numbers that differ. Else as `draw`."""
    first, second = summary(a).output_tokens_per_s, summary(b).output_tokens_per_s
    gain = f" ({second / first:.2f} times the tokens/s above)" if first else ""
    return _figure([a, b], [headline(a), headline(b) + gain], by, x, theme, strips)


def block_map(trace: Trace, step: int, request: str | None = None, theme: Theme = "light") -> Picture:
    """The pool while trace[step] runs: a cell for each block, in its owner's colour where keys and values are written.

    Where there is room, a block says `owner:logical`, and its number stands under it (in a grid of several rows: what
    is to be added to the row's). request: joins its blocks in the order of its tokens, downwards within each, so that
    the way there and back are two lines. Raises ValueError for a trace without a pool, IndexError for a step that is
    not there.
    """
    settings = trace.meta.get("settings", {})
    if not settings.get("num_blocks"):
        raise ValueError("this trace has no pool of blocks to draw: stage 'static' keeps a padded rectangle instead")
    step = range(len(trace))[step]
    total, size = settings["num_blocks"], settings["block_size"]
    ever_used = 1 + max((block for record in trace for move in record.blocks for block in move.blocks), default=0)
    columns = min(total, max(16, 1 << (isqrt(2 * ever_used) - 1).bit_length()))
    count = min(total, columns * ceil(ever_used / columns))
    height = ceil(count / columns)
    held = owners(trace, step)
    taken = sum(len(owned.blocks) for owned in held.values())
    title = f"{trace.meta.get('stage', 'trace')}, step {step}: {taken} of {total} blocks of {size} tokens are taken"
    title += f" (blocks {count} to {total - 1}, never used, are left out)" if count < total else ""

    with rc_context(_style(theme) | {"axes.facecolor": PAPER[theme]}):
        figure = Picture(figsize=(WIDTH, min(5.0, 0.3 * height) + 1.4), layout="constrained")
        ax = figure.subplots()
        ax.set(title=title, xlim=(0, columns), ylim=(height - 0.5, -0.5), ylabel="block")
        under = range(columns if columns <= 32 else 0)
        ax.set_xticks([x + 0.5 for x in under], [f"+{x}" if height > 1 else str(x) for x in under])
        ax.tick_params(axis="x", length=0)
        every = ceil(height / 12)
        ax.set_yticks(range(0, height, every), [str(row * columns) for row in range(0, height, every)])
        y, x = np.divmod(np.arange(count), columns)
        ax.add_artist(PathPatch(_rectangles(x, x + 1, y), facecolor=_colour("idle", theme), linewidth=0))
        legend: Legend = {
            "free": Patch(facecolor=_colour("idle", theme)),
            "taken, nothing written": Patch(facecolor=(INK[theme], 0.1), edgecolor=INK[theme], hatch="..."),
        }
        order = rows(trace, "request")
        for id, owned in sorted(held.items(), key=lambda item: order.index(item[0])):
            y, x = np.divmod(owned.blocks, columns)
            written = np.clip(owned.tokens / size - np.arange(len(x)), 0, 1)
            colour = OWNERS[order.index(id) % len(OWNERS)]
            empty: dict[str, Any] = {"facecolor": (colour, 0.35), "edgecolor": colour, "hatch": "...", "linewidth": 0}
            ax.add_artist(PathPatch(_rectangles(x, x + 1, y), **empty))
            ax.add_artist(PathPatch(_rectangles(x, x + written, y), facecolor=colour, linewidth=0))
            legend[f"{id}: {owned.tokens} of {len(x) * size}"] = Patch(facecolor=colour)
            if height <= 16 and len(f"{id}:{len(x)}") <= 16 * (WIDTH - 1) / columns:
                for i, part in enumerate(written):
                    ink, ground = ("#000000", colour) if part > 0.5 else (INK[theme], PAPER[theme])
                    halo = [withStroke(linewidth=1.5, foreground=ground)] if 0 < part < 1 else None
                    ax.text(
                        x[i] + 0.5,
                        y[i],
                        f"{id}:{i}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color=ink,
                        path_effects=halo,
                    )
            if id == request:
                ax.plot(x + 0.5, y + np.linspace(0.2, 0.42, len(x)), color=INK[theme], marker="o", markersize=3)
                frame = {"fill": False, "edgecolor": INK[theme], "linewidth": 1.5, "zorder": 3}
                ax.add_artist(PathPatch(_rectangles(x, x + 1, y), **frame))
        ax.hlines(np.arange(height + 1) - 0.5, 0, columns, color=PAPER[theme], linewidth=1)
        ax.vlines(np.arange(columns + 1), -0.5, height - 0.5, color=PAPER[theme], linewidth=1)
        labels = list(legend)[:24]  # more would not be readable
        figure.legend([legend[label] for label in labels], labels, loc="outside lower center", ncols=6, frameon=False)
    return figure


def rows(trace: Trace, by: By) -> list[Any]:
    """What the picture's rows stand for: the numbers of the lanes, or the ids of the requests in order of arrival."""
    if by == "request":
        return list(requests(trace))
    return list(range(lanes_shown(trace)))


def grid(trace: Trace, by: By = "lane") -> np.ndarray:
    """The state of each row in each step: uint8 [rows, steps], codes of STATES."""
    index = {row: i for i, row in enumerate(rows(trace, by))}
    cells = np.full((len(index), len(trace)), CODE["idle" if by == "lane" else "waiting"], np.uint8)
    for step, record in enumerate(trace):
        if by == "request":  # it waits from its arrival to its end, except where it computes or has given way
            for arrival in record.arrived:
                cells[index[arrival.id], :step] = CODE["idle"]
            for preemption in record.preempted:
                if preemption.cause != "turn" and preemption.id in index:  # else the trace never saw it at work
                    cells[index[preemption.id], step:] = CODE["preempted"]
            for id in record.resumed:
                cells[index[id], step:] = CODE["waiting"]
            for id, _ in record.finished:
                cells[index[id], step:] = CODE["idle"]
        for row, work in shown(record, "lane" if by == "lane" else "id").items():
            if work.kind == "wasted":  # its request has ended, perhaps before the trace began
                cells[index[row], step:] = CODE["idle"]
            cells[index[row], step] = CODE[work.kind]
    return cells


def _figure(traces: list[Trace], titles: list[str], by: By, x: X, theme: Theme, counts: bool) -> Picture:
    if not all(any(record.work for record in trace) for trace in traces):
        raise ValueError("nothing was computed in this trace, so there is nothing to draw: run a request first")
    edges = [_edges(trace, x) for trace in traces]
    pools = [[_kv] if any(record.kv for record in trace) else [] for trace in traces]
    strips = [[_tokens, _queue, *pool, _device] if counts else [] for pool in pools]
    heights: list[float] = []
    for trace, below in zip(traces, strips, strict=True):
        heights += [_height(trace, by)] + [0.55 if strip is not _device else 0.16 for strip in below]
    legend: Legend = {}
    same: dict[Any, list[Axes]] = {}  # what two traces are compared on has one scale
    with rc_context(_style(theme)):
        figure = Picture(figsize=(WIDTH, sum(heights) + 0.3 * len(traces) + 0.6), layout="constrained")
        axes = iter(figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0])
        for trace, title, columns, below in zip(traces, titles, edges, strips, strict=True):
            ax = next(axes)
            ax.set_title(title, parse_math=False)
            ax.set_xlim(min(0.0, edges[0][0]), max(1e-6, *(e[-1] for e in edges)))  # a trace may take no time
            legend |= _cells(ax, trace, columns, by, x, theme)
            for strip in below:
                ax = next(axes)
                legend |= strip(ax, trace, columns, theme)
                same.setdefault(strip, []).append(ax)
        for strip, alike in same.items():
            top = max(1, *(1.05 * other.dataLim.y1 for other in alike))
            for other in alike:
                other.set_ylim(0, 1 if strip is _device else top)
                other.yaxis.set_major_locator(NullLocator() if strip is _device else MaxNLocator(2, integer=True))
        seconds = "modelled seconds" if traces[0].meta.get("clock") == "virtual" else "seconds"
        ax.set_xlabel("step" if x == "step" else seconds)
        if x == "step":
            ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        figure.align_ylabels()
        ncols = ceil(len(legend) / 2) if len(legend) > 9 else len(legend)  # nine fit in a row
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=ncols, frameon=False)
    return figure


def _height(trace: Trace, by: By) -> float:  # inches
    return min(5.0, max(1.2, 0.2 * len(rows(trace, by))))


def _edges(trace: Trace, x: X) -> np.ndarray:
    """The borders of the columns: n + 1 for n steps; 2 n by time, where a gap lies between two steps."""
    if x == "step":
        return np.arange(len(trace) + 1) - 0.5
    return _by_time(trace, [record.t0 for record in trace])


def _by_time(trace: Trace, starts: list[float]) -> np.ndarray:
    start, end = np.array([starts, [record.t1 for record in trace]]) - span(trace)[0]
    unseen = start[1:] - end[:-1] < end[-1] / 1000  # less than a pixel, which would show whole or not at all
    start[1:][unseen] = end[:-1][unseen]
    return np.stack([start, end], axis=1).ravel()


def _columns(per_step: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Values per step [..., n] as values per column. In a gap nothing runs: 0, which is also the code of idle."""
    columns = np.zeros((*per_step.shape[:-1], len(edges) - 1), per_step.dtype)
    columns[..., :: 1 if columns.shape == per_step.shape else 2] = per_step
    return columns


# -- panels: each draws into its axes and returns its part of the legend ----------------------------------------------


def _cells(ax: Axes, trace: Trace, edges: np.ndarray, by: By, x: X, theme: Theme) -> Legend:
    """The states, a row per lane or request."""
    names = rows(trace, by)
    cells = _columns(grid(trace, by), edges)
    borders = np.arange(len(names) + 1) - 0.5
    colours = ListedColormap([_colour(state.name, theme) for state in STATES])
    not_idle = np.ma.masked_equal(cells, CODE["idle"])
    ax.pcolorfast(edges, borders, not_idle, cmap=colours, vmin=-0.5, vmax=len(STATES) - 0.5)
    ax.set_ylim(len(names) - 0.5, -0.5)  # the first row on top
    ax.set_ylabel(by)
    ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    if len(names) <= 24:
        ax.set_yticks(range(len(names)), [str(name)[:12] for name in names], parse_math=False)  # a $ is a $
        ax.hlines(borders, edges[0], edges[-1], color=PAPER[theme], linewidth=0.6)
    legend: Legend = {}
    if by == "request" and x == "time":  # it waits from its arrival on, also within a step and between two
        begin, end = span(trace)
        times = [(r.arrival, r.first_scheduled, r.finished) for r in requests(trace).values()]
        arrival, *until = np.array(times, float).T  # None becomes nan, which fmax and fmin pass over
        left, right = np.fmax(arrival, begin) - begin, np.fmin.reduce(until, initial=end) - begin
        bars = _rectangles(left, np.maximum(left, right), np.arange(len(names)))
        ax.add_artist(PathPatch(bars, facecolor=_colour("waiting", theme), linewidth=0))
        legend["waiting"] = Patch(facecolor=_colour("waiting", theme))

    # A cell of 6 points or more has room for the letter of its state; the others get a hatch.
    widths = np.diff(edges) * 72 * (WIDTH - 1) / np.ptp(ax.get_xlim())
    roomy = (widths >= 6) & (72 * _height(trace, by) / len(names) >= 6)
    for code, state in enumerate(STATES):
        here = cells == code
        mark = _mark(state, theme)
        lettered = here & roomy if state.sign.isalpha() else np.zeros_like(here)
        y, column = np.nonzero(lettered)
        middle = (edges[column] + edges[column + 1]) / 2
        ax.scatter(middle, y, s=16, marker=_letter(state), color=mark, linewidths=0)
        if state.hatch:
            runs = _runs(here & ~lettered, edges)
            ax.add_artist(PathPatch(runs, fill=False, linewidth=0, hatch=state.hatch, edgecolor=mark))
        if here.any():
            legend[state.name] = _swatch(state, theme, lettered.any())

    left = edges[:: 1 if x == "step" else 2]  # where each step begins
    index = {name: i for i, name in enumerate(names)}
    gone = [(left[step], index.get(lane if by == "lane" else p.id)) for step, lane, p in preemptions(trace)]
    if gone := [(at, row) for at, row in gone if row is not None]:
        x_at, y_at = zip(*gone, strict=True)
        colour, edge = _colour("preempted", theme), PAPER[theme]
        marks = ax.scatter(x_at, y_at, s=45, marker="X", color=colour, edgecolor=edge, linewidth=0.7, zorder=3)
        legend["preemption"] = marks
    return legend


def _tokens(ax: Axes, trace: Trace, edges: np.ndarray, theme: Theme) -> Legend:
    """Rows of the model per step, by what they are for, and the budget."""
    ax.set_ylabel("tokens")
    base = np.zeros(len(edges) - 1)
    for kind in ("decode", "prefill", "recompute", "wasted"):
        tokens = [sum(work.tokens for work in record.work if work.kind == kind) for record in trace]
        top = base + _columns(np.array(tokens), edges)
        ax.stairs(top, edges, baseline=base, fill=True, **_look(STATES[CODE[kind]], theme))
        base = top
    budget = max(record.budget or 0 for record in trace)
    return {"budget": ax.axhline(budget, color=INK[theme], linestyle=":")} if budget else {}


def _queue(ax: Axes, trace: Trace, edges: np.ndarray, theme: Theme) -> Legend:
    """Requests that wait."""
    ax.set_ylabel("waiting")
    waiting = [1 + record.waiting.behind if record.waiting else 0 for record in trace]
    ax.stairs(_columns(np.array(waiting), edges), edges, fill=True, **_look(STATES[CODE["waiting"]], theme))
    return {}


def _kv(ax: Axes, trace: Trace, edges: np.ndarray, theme: Theme) -> Legend:
    """Tokens of the pool: with keys and values, owned by a request but empty, and all there are."""
    ax.set_ylabel("KV tokens")
    pools = [record.kv or {"used": 0, "reserved": 0, "internal": 0, "total": 0} for record in trace]
    used = _columns(np.array([kv["used"] for kv in pools]), edges)
    owned = used + _columns(np.array([kv["reserved"] + kv["internal"] for kv in pools]), edges)
    full: dict[str, Any] = {"facecolor": KV, "linewidth": 0}
    empty: dict[str, Any] = {"facecolor": (KV, 0.2), "edgecolor": KV, "hatch": ".....", "linewidth": 0}
    ax.stairs(used, edges, fill=True, **full)
    ax.stairs(owned, edges, baseline=used, fill=True, **empty)
    capacity = ax.axhline(max(kv["total"] for kv in pools), color=INK[theme], linestyle="--")
    return {"KV used": Patch(**full), "KV reserved, unused": Patch(**empty), "KV capacity": capacity}


def _device(ax: Axes, trace: Trace, edges: np.ndarray, theme: Theme) -> Legend:
    """By steps: for which share of the time since the step before it was busy. By time: when it was.

    A gap that does not show makes its column lower.
    """
    shares = np.array(list(busy_shares(trace)))
    if len(edges) > len(trace) + 1:
        edges = _by_time(trace, [busy_from(trace, record) for record in trace])
        shares[1:][edges[2::2] > edges[1:-1:2]] = 1
        shares[0] = 1
    ax.stairs(_columns(shares, edges), edges, fill=True, facecolor=(INK[theme], 0.45), linewidth=0)
    ax.text(1, 1, f"device busy {busy_share(trace):.0%}", transform=ax.transAxes, ha="right", va="bottom")
    return {}


# -- looks ------------------------------------------------------------------------------------------------------------


def _style(theme: Theme) -> Any:  # for rc_context
    ink = dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK[theme])
    paper = {"figure.facecolor": PAPER[theme], "axes.facecolor": _colour("idle", theme)}
    sizes = {"font.size": 8, "axes.titlesize": 9, "lines.linewidth": 1, "hatch.linewidth": 0.6}
    return {**ink, **paper, **sizes, "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False}


def _colour(name: str, theme: Theme) -> str:
    return getattr(STATES[CODE[name]], theme)


def _mark(state: State, theme: Theme) -> str:
    """Black or white, whichever is easier to read on the state's colour."""
    red, green, blue = to_rgb(_colour(state.name, theme))
    return "#000000" if 0.30 * red + 0.59 * green + 0.11 * blue > 0.45 else "#FFFFFF"


def _look(state: State, theme: Theme) -> dict[str, Any]:
    colours = {"facecolor": _colour(state.name, theme), "edgecolor": _mark(state, theme)}
    return {**colours, "hatch": state.hatch, "linewidth": 0}


def _letter(state: State) -> str:
    return rf"$\mathrm{{{state.sign}}}$"  # a marker, so that one artist draws all letters of a state


def _swatch(state: State, theme: Theme, letter: bool) -> Any:
    """The state's look in the legend: with its letter where cells have room for it, else with its hatch."""
    if not letter:
        return Patch(**_look(state, theme))
    look: dict[str, Any] = {"color": _mark(state, theme), "linestyle": "", "markersize": 6, "markeredgewidth": 0}
    return Patch(facecolor=_colour(state.name, theme)), Line2D([], [], marker=_letter(state), **look)


def _runs(cells: np.ndarray, edges: np.ndarray) -> Path:
    """One path around all cells that are set: a rectangle for each run in a row."""
    changes = np.diff(cells.astype(np.int8), axis=1, prepend=0, append=0)
    y, start = np.nonzero(changes == 1)
    _, stop = np.nonzero(changes == -1)  # in the order of the starts
    return _rectangles(edges[start], edges[stop], y)


def _rectangles(left: np.ndarray, right: np.ndarray, y: np.ndarray) -> Path:
    top, bottom = y - 0.5, y + 0.5
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    vertices = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(vertices, np.tile(np.array(codes, Path.code_type), len(y)))
