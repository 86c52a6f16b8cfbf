"""When the device was at work, and when it waited: for Python that schedules, for a launch, for a request to arrive."""

from __future__ import annotations

from collections.abc import Iterator

from minibatcher.trace import StepRecord, Trace


def has_own_times(trace: Trace) -> bool:
    """Whether `t0` and `t1` are a GPU's own. Elsewhere they are the step's, in which Python schedules first."""
    return str(trace.meta.get("device", "")).startswith("cuda")


def busy_from(trace: Trace, record: StepRecord) -> float:
    """When the device begins to work for a step; it does so until `t1`. In a step without work that is `t1`."""
    if not record.work:
        return record.t1
    if has_own_times(trace):
        return record.t0
    launch = (record.cost or {}).get("overhead", 0.0) if "mfu" in (record.cost or {}) else 0.0  # of a modelled GPU
    return min(record.t0 + record.schedule_s + launch, record.t1)


def busy_shares(trace: Trace) -> Iterator[float]:
    """For each step, the device's share of the time since the end of the step before."""
    before = trace[0].t0 if trace.records else 0.0
    for record in trace:
        yield share(record.t1 - busy_from(trace, record), record.t1 - before)
        before = record.t1


def busy_share(trace: Trace) -> float:
    """The same for the whole run."""
    seconds = trace[-1].t1 - trace[0].t0 if trace.records else 0.0
    return share(sum(record.t1 - busy_from(trace, record) for record in trace), seconds)


def share(busy: float, seconds: float) -> float:
    return min(1.0, busy / seconds) if seconds > 0 else float(busy > 0)
