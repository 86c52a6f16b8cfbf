"""Pictures of one step: how its batch is laid out, and what its time is made of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Patch, Rectangle

from minibatcher.measure.costs import CostModel
from minibatcher.measure.gpus import GPU, TFLOPS
from minibatcher.measure.shapes import decodes
from minibatcher.trace import StepRecord
from minibatcher.views.curves import COLOURS, DASHES, MARKERS
from minibatcher.views.figure import WIDTH, Picture, Theme, _style
from minibatcher.views.states import INK, OWNERS, PAPER, STATES

BATCHES = tuple(1 << i for i in range(10))  # 1 to 512
MOST_CELLS = 72  # more have no room for their numbers


def ragged(record: StepRecord, theme: Theme = "light") -> Picture:
    """A step's work as a padded rectangle, and as the flat batch that the engine computes in its place.

    The number in a cell says where the token stands in its request. Raises ValueError where the two would not be seen:
    for a step of stage 1, of nothing, or of more than 72 tokens.
    """
    kinds = {work.kind for work in record.work}
    singles = sorted((work for work in record.work if work.tokens == 1), key=lambda work: work.context)
    rows = singles + [work for work in record.work if work.tokens > 1]
    total, width = sum(work.tokens for work in rows), max((work.tokens for work in rows), default=0)
    if not rows or "wasted" in kinds or total > MOST_CELLS:
        raise ValueError(f"this step has {total} tokens of kinds {sorted(kinds)}: give one of 1 to {MOST_CELLS}, flat")
    wasted = next(state for state in STATES if state.name == "wasted")
    with rc_context(_style(theme) | {"axes.facecolor": PAPER[theme]}):
        size = min(WIDTH, max(6.5, 0.5 * total)), 1.9 + 0.3 * (len(rows) + 2)
        figure = Picture(figsize=size, layout="constrained")
        above, below = figure.subplots(2, height_ratios=[len(rows), 2.2])

        def cell(ax, x: int, y: int, colour: str, text: str = "", hatch: str = "") -> None:  # type: ignore[no-untyped-def]
            ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor=PAPER[theme], hatch=hatch, linewidth=1))
            ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color="#000000")

        borders = [0]
        for y, work in enumerate(rows):
            colour, start = OWNERS[y % len(OWNERS)], work.context - work.tokens
            for x in range(width):
                if x < width - work.tokens:
                    cell(above, x, y, getattr(wasted, theme), hatch=wasted.hatch)
                else:
                    cell(above, x, y, colour, str(work.context - width + x))
            for i in range(work.tokens):
                cell(below, borders[-1] + i, 0, colour, str(start + i))
            below.text(borders[-1] + work.tokens / 2, -0.25, work.id, ha="center", va="bottom", fontweight="bold")
            borders.append(borders[-1] + work.tokens)
            if work.id in record.emitted:
                below.plot(borders[-1] - 0.5, 1.25, marker="^", color=INK[theme], markersize=5)
        cells = len(rows) * width
        above.set_title(f"padded: {len(rows)} requests x {width} = {cells} positions, {cells - total} of them empty")
        above.set(xlim=(0, total), ylim=(len(rows), 0))
        above.set_yticks(np.arange(len(rows)) + 0.5, [work.id for work in rows], parse_math=False)
        above.set_xticks([])
        below.set_title(f"flat: {total} positions, none of them empty")
        below.set(xlim=(0, total), ylim=(1.6, -0.9))
        below.set_yticks([])
        below.set_xticks(borders)
        below.set_xlabel("cumulative lengths")
        for ax in (above, below):
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0)
        padding = Patch(facecolor=getattr(wasted, theme), hatch=wasted.hatch, label="padding")
        (last,) = below.plot([], [], "^", color=INK[theme], label="a request's last position: sampled")
        figure.legend(handles=[padding, last], loc="outside lower center", ncols=2, frameon=False)
    return figure


def by_batch(measured: Mapping[str, Mapping[int, float]], theme: Theme = "light") -> Picture:
    """Seconds of a step by its batch, in steps of batch 1, beside what a loop over the requests would take."""
    with rc_context(_style(theme) | {"axes.facecolor": PAPER[theme]}):
        figure = Picture(figsize=(7, 3), layout="constrained")
        ax = figure.subplots()
        for number, (name, seconds) in enumerate(measured.items()):
            first, look = seconds[min(seconds)], DASHES[number % len(DASHES)]
            ax.plot(list(seconds), [s / first for s in seconds.values()], f"o{look}", color=COLOURS[number], label=name)
        most = max(max(seconds) for seconds in measured.values())
        ax.plot([1, most], [1, most], ":", color=INK[theme], label="one after the other")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ticks = [batch for batch in BATCHES if batch <= most]
        ax.set_xticks(ticks, [str(batch) for batch in ticks])
        ax.set_yticks(ticks, [str(batch) for batch in ticks])
        ax.set(xlabel="batch", ylabel="step, in steps of batch 1")
        ax.legend(frameon=False)
    return figure


def terms(costs: CostModel, context: int, batch: int, name: str = "", theme: Theme = "light") -> Picture:
    """What a step of decodes takes by its batch, in layers, with one batch marked."""
    batches = range(1, BATCHES[-1] + 1)
    every = [costs.step(decodes(b, context)) for b in batches]
    more = [max(0.0, step["compute"] - step["weights"]) for step in every]
    layers = {
        "reading the weights": [step["weights"] for step in every],
        "multiplying by them, where it takes longer": more,
        "attention: keys and values": [step["kv"] + step["gather"] + step["attention"] for step in every],
        "overhead": [step["overhead"] for step in every],
    }
    here, alone = (1000 * costs.step(decodes(b, context))["seconds"] for b in (batch, 1))
    with rc_context(_style(theme) | {"axes.facecolor": PAPER[theme]}):
        figure = Picture(figsize=(9, 3), layout="constrained")
        ax = figure.subplots()
        heights = [[1000 * s for s in layer] for layer in layers.values()]
        hatches = ["", "////", "....", ""]
        for band, hatch in zip(
            ax.stackplot(batches, heights, labels=list(layers), colors=COLOURS), hatches, strict=True
        ):
            band.set_hatch(hatch)
            band.set_edgecolor(PAPER[theme])
            band.set_linewidth(0)
        ax.axvline(batch, color=INK[theme], linestyle="--")
        ax.set_xscale("log", base=2)
        ax.set_xticks(BATCHES, [str(b) for b in BATCHES])
        ax.set(xlim=(1, BATCHES[-1]), xlabel="batch", ylabel="ms", ylim=(0, None))
        ax.set_title(
            f"{name}batch {batch}, context {context:,}: {here:.2f} ms a step, {here / alone:.2f} times batch 1, "
            f"{1000 * batch / here:,.0f} tokens/s"
        )
        ax.legend(*(part[::-1] for part in ax.get_legend_handles_labels()), loc="upper left", frameon=True)
    return figure


def roofline(device: GPU, dtype: str, steps: Mapping[str, Mapping[str, float]], theme: Theme = "light") -> Picture:
    """Steps under a GPU's roof: FLOPs for each byte read, against the FLOP/s reached (Williams et al., CACM 2009).

    steps: by name, the terms of a modelled step.
    """
    peak, bandwidth = device.peak(dtype), device.bandwidth
    x = np.geomspace(0.5, 8 * peak / bandwidth, 100)
    with rc_context(_style(theme) | {"axes.facecolor": PAPER[theme]}):
        figure = Picture(figsize=(7, 3.2), layout="constrained")
        ax = figure.subplots()
        ax.plot(x, np.minimum(peak, x * bandwidth) / TFLOPS, color=INK[theme])
        ax.axvline(peak / bandwidth, color=INK[theme], linestyle=":")
        ax.annotate(f" ridge: {peak / bandwidth:.0f} FLOPs a byte", (peak / bandwidth, 1.2 * bandwidth / TFLOPS))
        for number, (name, step) in enumerate(steps.items()):
            flops = step["mfu"] * peak * step["seconds"]
            at = flops / (step["mbu"] * bandwidth * step["seconds"]), step["mfu"] * peak / TFLOPS
            ax.plot(*at, MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)], label=name)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set(xlabel="FLOPs for each byte read", ylabel="TFLOP/s", title=f"modelled {device.name}, {dtype}")
        ax.legend(loc="upper left", frameon=False)
    return figure
