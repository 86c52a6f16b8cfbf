"""Tables of whole runs, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from minibatcher.measure.capacity import Capacity
from minibatcher.measure.metrics import Bucket, Percentiles, Summary
from minibatcher.measure.policies import SHARES, Policy
from minibatcher.measure.workloads import Description


def workload(about: Description, timed: bool = True) -> Table:
    """timed: False where only the lengths matter."""
    arrivals = [
        ("requests", f"{about.requests:,} in {about.seconds:,.0f} s"),
        ("rate (requests/s)", f"{about.rate:.2f}" if about.rate else "all at once"),
        ("burstiness", f"{about.burstiness:.1f} (0 is steady, 1 Poisson)"),
    ]
    rows = [
        *(arrivals if timed else []),
        ("prompt tokens p50, p95, p99", _three(about.prompt, "{:,.0f}")),
        ("output tokens p50, p95, p99", _three(about.output, "{:,.0f}")),
        ("longest request (tokens)", f"{about.longest:,}"),
    ]
    return _table("the workload", ["", ""], rows)


def run(name: str, s: Summary) -> Table:
    """One run, in full."""
    rows = [
        ("seconds", f"{s.seconds:,.1f}"),
        ("ended", ", ".join(f"{n:,} {why}" for why, n in s.finish_reasons.items())),
        ("output tokens/s", f"{s.output_tokens_per_s:,.1f}"),
        ("tokens a step", f"{s.scheduled_tokens_per_step:,.1f}"),
        ("TTFT p50, p95, p99 (s)", _three(s.ttft, "{:.3f}")),
        ("ITL p50, p95, p99 (ms)", _three(s.itl, "{:.1f}", 1000)),
        ("E2E p50, p95, p99 (s)", _three(s.e2e, "{:.2f}")),
        ("queue p50, p95, p99 (s)", _three(s.queue, "{:.3f}")),
        ("running, mean and most", f"{s.mean_running:.1f}, {s.max_running}"),
        ("waiting, mean and most", f"{s.mean_waiting:.1f}, {s.max_waiting}"),
        ("KV used, owned but empty", f"{_share(s.kv_used_share)}, {_share(s.kv_reserved_share)}"),
        ("preemptions, tokens again", f"{s.preemptions:,}, {s.recomputed_tokens:,}"),
        ("wasted rows", _share(s.wasted_row_share)),
        ("MFU, MBU while busy", f"{_share(s.mfu)}, {_share(s.mbu)}"),
    ]
    table = _table("", ["", name], rows)
    table.caption = (
        "TTFT: time to the first token. ITL: gap between two tokens. E2E: to the last token. MFU, MBU: share of the "
        "GPU's FLOPs and of its memory bandwidth that steps use"
    )
    return table


def sweep(varied: str, runs: Mapping[str, Summary]) -> Table:
    """A line for each run; narrow enough for a terminal of 80 characters."""
    columns = ["tokens/s", "TTFT p50", "p99 s", "ITL p50", "p99 ms", "running", "waiting", "KV", "pre", "MFU", "MBU"]
    rows = [
        (
            name,
            f"{s.output_tokens_per_s:,.0f}",
            _number(s.ttft.p50, "{:.3f}"),
            _number(s.ttft.p99, "{:.3f}"),
            _number(s.itl.p50, "{:.1f}", 1000),
            _number(s.itl.p99, "{:.1f}", 1000),
            f"{s.mean_running:.1f}",
            f"{s.mean_waiting:.1f}",
            _share(s.kv_used_share),
            f"{s.preemptions:,}",
            _share(s.mfu),
            _share(s.mbu),
        )
        for name, s in runs.items()
    ]
    table = _table("", [varied, *columns], rows)
    _narrow(table)
    table.caption = "running, waiting, KV: means over the steps. pre: preemptions. MFU, MBU: while busy"
    return table


def buckets(title: str, found: Iterable[Bucket]) -> Table:
    rows = [
        (f"{b.low:,}" if b.low == b.high else f"{b.low:,} to {b.high:,}", f"{b.count:,}", _three(b.seconds, "{:.3g}"))
        for b in found
    ]
    return _table(title, [title.partition(" by ")[2], "count", "p50, p95, p99 (s)"], rows)


def capacities(title: str, found: Mapping[str, Capacity], think_s: float, price: float | None) -> Table:
    """A column for each stage; narrow enough for six of them in a terminal of 80 characters."""
    all_ = list(found.values())
    rows = [
        ("requests/s", [f"{one.rate:.3g}" for one in all_]),
        ("95%", [_interval(one) for one in all_]),
        ("tokens/s out", [f"{one.figures.output_tokens_per_s:,.0f}" for one in all_]),
        ("TTFT p99 s", [_number(one.figures.ttft.p99, "{:.2f}") for one in all_]),
        ("ITL p99 ms", [_number(one.figures.itl.p99, "{:.1f}", 1000) for one in all_]),
        ("running", [f"{one.figures.mean_running:.1f}" for one in all_]),
        ("at most", [f"{one.figures.max_running}" for one in all_]),
        ("preempted", [f"{one.figures.preemptions:,}" for one in all_]),
        ("users", [f"{one.users(think_s):,.0f}" for one in all_]),
        ("then misses", [", ".join(one.missed) for one in all_]),
        *((name, [f"{one.shares[name]:.0%}" for one in all_]) for name in all_[0].shares),
    ]
    if price is not None:
        rows.append(("cost/M out", [f"{one.price(price):.2f}" for one in all_]))
    table = _table(title, ["", *found], [(name, *cells) for name, cells in rows])
    _narrow(table)
    table.caption = (
        f"users: each thinks for {think_s:g} s before the next request. compute to slots: shares of the busy time at "
        "the rate just above, by what held it up"
    )
    return table


def policies(found: Iterable[Policy]) -> Table:
    """A line for each pair; narrow enough for a terminal of 80 characters."""
    columns = ["scheduling", "memory", "tokens/s", "running", *SHARES]
    rows = [
        (
            one.scheduling,
            one.memory,
            f"{one.figures.output_tokens_per_s:,.0f}",
            f"{one.figures.mean_running:.1f}",
            *(f"{one.shares[name]:.0%}" for name in SHARES),
        )
        for one in found
    ]
    table = _table("shares of the pool while it is busy", columns, rows)
    _narrow(table)
    table.columns[1].justify = "left"
    table.caption = "reserved: may still be used; internal: never can; external: free, in holes too short"
    return table


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    look: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "show_header": any(columns)}
    table = Table(title=title or None, **look)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _interval(one: Capacity) -> str:
    return "-".join(f"{max(0.0, end):.{3 if end >= 10 else 2}g}" for end in (one.low, one.high))


def _narrow(table: Table) -> None:
    table.box, table.padding, table.show_edge = SIMPLE_HEAD, (0, 0), False


def _three(values: Percentiles, form: str, scale: float = 1.0) -> str:
    return ", ".join(_number(value, form, scale) for value in (values.p50, values.p95, values.p99))


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
