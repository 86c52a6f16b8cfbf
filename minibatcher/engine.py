"""The loop. It is the same at every stage: schedule, execute, commit."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from minibatcher.clock import Clock
from minibatcher.plan import Plan
from minibatcher.request import Request
from minibatcher.schedulers.base import Scheduler
from minibatcher.trace import StepRecord, Trace


class Runner(Protocol):
    def execute(self, plan: Plan) -> Mapping[Request, int | None]:
        """Run the model over the plan's work and change no request.

        Returns the sampled token of each request whose gap closes; None where its logits were not finite.
        """


class Engine:
    """A scheduler, a runner and a clock.

    meta: goes into the trace. keep_trace: False for a run of which only the tokens matter; `trace` stays empty then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock | None = None,
        *,
        meta: dict[str, Any] | None = None,
        keep_trace: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = scheduler.clock = clock or Clock()
        self.keep_trace = scheduler.tracing = keep_trace
        self._meta = {**(meta or {}), "clock": self.clock.kind}
        self.trace = Trace(self._meta)
        self._future: list[tuple[float, int, Request]] = []  # a heap of those whose arrival is still to come
        self._future_ids: set[str] = set()
        self._names, self._order = map(str, itertools.count()), itertools.count()
        self._steps = itertools.count()

    def step(self) -> StepRecord:
        """One step. It waits for the next arrival when there is nothing else to do."""
        plan, t0, schedule_s = self._next_plan()
        sampled: Mapping[Request, int | None] = {}
        try:
            if plan.work:
                sampled = self.runner.execute(plan)
        except BaseException as error:
            self.scheduler.fail(plan, error)
            if not isinstance(error, Exception):  # Ctrl-C: the engine is in order, and the caller decides
                raise
        record = self.scheduler.commit(plan, sampled)
        record.step, record.t0, record.t1, record.schedule_s = next(self._steps), t0, self.clock.now(), schedule_s
        if self.keep_trace:
            self.trace.append(record)
        return record

    def _next_plan(self) -> tuple[Plan, float, float]:
        scheduler, clock = self.scheduler, self.clock
        while True:
            t0 = clock.now()
            while self._future and self._future[0][0] <= t0:
                request = heapq.heappop(self._future)[2]
                self._future_ids.remove(request.request_id)
                scheduler.add(request)
            plan = scheduler.schedule()
            schedule_s = clock.now() - t0
            if plan.work or scheduler.news.finished or not self.has_work:
                return plan, t0, schedule_s
            events = [t for t in (plan.wait_until, self._future[0][0] if self._future else None) if t is not None]
            if not events or (scheduler.requests and plan.wait_until is None):
                why = f"; request {plan.waiting[0].request_id!r} waits: {plan.waiting[1]}" if plan.waiting else ""
                raise RuntimeError(f"there is work, and the scheduler scheduled nothing (a bug in schedule){why}")
            clock.wait_until(min(events))

    @property
    def has_work(self) -> bool:
        return bool(self._future or self.scheduler.has_work)

    def add(self, request: Request) -> str:
        """Queue a request, now or when the clock reaches its arrival. Returns its id.

        Raises ValueError or TypeError with the value, the limit and the remedy; then nothing has changed.
        """
        self.add_all([request])
        return request.request_id

    def add_all(self, requests: Iterable[Request]) -> None:
        """Add all of them, or none when one is refused."""
        requests = list(requests)
        taken = {request.request_id for request in requests} | self.scheduler.requests.keys() | self._future_ids
        for request in requests:
            if not request.request_id:
                request.request_id = next(name for name in self._names if name not in taken)
        seen: set[str] = set()
        for request in requests:
            self.scheduler.check(request)
            if request.request_id in seen or request.request_id in self._future_ids:
                raise ValueError(f"request {request.request_id!r} is in the engine or the list already: each id once")
            seen.add(request.request_id)
        for request in requests:
            now = self.clock.now()
            request.arrival = now if request.arrival is None else request.arrival
            if request.arrival <= now:
                self.scheduler.add(request)
            else:
                heapq.heappush(self._future, (request.arrival, next(self._order), request))
                self._future_ids.add(request.request_id)

    def abort(self, request_id: str) -> bool:
        """Take a request back, whatever it is doing. False when there is none of that id (it may have finished)."""
        if request_id in self._future_ids:  # it arrives now, and ends like any other
            entry = next(entry for entry in self._future if entry[2].request_id == request_id)
            self._future.remove(entry)
            heapq.heapify(self._future)
            self._future_ids.remove(request_id)
            entry[2].arrival = self.clock.now()
            self.scheduler.add(entry[2])
        return self.scheduler.abort(request_id)

    def run(self, requests: Iterable[Request] = ()) -> Trace:
        """Serve requests, each from its arrival on, until nothing is left. Returns the trace of this run.

        Nothing is added when one of them is refused.
        """
        self.add_all(requests)
        self.new_trace()
        while self.has_work:
            self.step()
        return self.trace

    def new_trace(self) -> Trace:
        """Begin a trace; the views that listen go along."""
        listeners = self.trace.listeners
        self.trace = Trace(self._meta)
        self.trace.listeners = listeners
        return self.trace
