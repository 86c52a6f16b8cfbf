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

        Returns the sampled token of each request whose gap closes; None where its logits were not finite. A runner on
        a GPU then has `busy_s`, how long it worked; a modelled one has `cost`, the terms of its time.
        """


class Engine:
    """A scheduler, a runner and a clock.

    meta: goes into the trace. keep_trace: False for a run of which only the tokens matter; `trace` stays empty then.
    max_queue: how many may wait for a lane; None is no limit, and under overload the queue grows without end.
    when_full: what happens to a request that arrives then. `reject` ends it with `error` at once; `wait` leaves it
    outside until there is room, and its times count from its arrival all the same.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock | None = None,
        *,
        meta: dict[str, Any] | None = None,
        keep_trace: bool = True,
        max_queue: int | None = None,
        when_full: str = "reject",
    ) -> None:
        if max_queue is not None and max_queue < 0:
            raise ValueError(f"max_queue={max_queue} is not allowed: 0 requests or more, or None for no limit")
        if when_full not in ("reject", "wait"):
            raise ValueError(f"when_full={when_full!r} is unknown: choose reject or wait")
        self.max_queue = max_queue
        self.when_full = when_full
        self.scheduler = scheduler
        self.runner = runner
        self.clock = scheduler.clock = clock or Clock()
        self.keep_trace = scheduler.tracing = keep_trace
        self._meta = {**(meta or {}), "clock": self.clock.kind}
        self.trace = Trace(self._meta)
        self._future: list[tuple[float, int, Request]] = []  # a heap, by arrival, of those who are not in the queue yet
        self._future_ids: set[str] = set()
        self._left_out = False  # whether somebody had to wait in the last plan
        self._names, self._order = map(str, itertools.count()), itertools.count()
        self._steps = itertools.count()

    def step(self) -> StepRecord:
        """One step. It waits for the next arrival when there is nothing else to do."""
        # schedule (in _next_plan), execute, commit; all else is time, arrivals and faults.
        plan, t0, schedule_s = self._next_plan()
        sampled: Mapping[Request, int | None] = {}
        cost = device = None
        try:
            if plan.work:
                sampled = self.runner.execute(plan)
                cost = getattr(self.runner, "cost", None)  # a modelled GPU says what the step's time was made of
                device = self._device_times(t0)
        except BaseException as error:
            self.scheduler.fail(plan, error)
            if not isinstance(error, Exception):  # Ctrl-C: the step is told, and the caller decides
                raise
        finally:
            record = self.scheduler.commit(plan, sampled)
            record.step, record.schedule_s, record.cost = next(self._steps), schedule_s, cost
            record.t0, record.t1 = device or (t0, self.clock.now())
            if self.keep_trace:
                self.trace.append(record)
        return record

    def _device_times(self, t0: float) -> tuple[float, float] | None:
        """When a GPU began and ended its work for this step, which began at t0; None where there is none.

        It says itself how long it worked, and it ends now: the runner has waited for its tokens. So each step is put
        on the engine's clock anew, and the two clocks cannot drift apart.
        """
        seconds = getattr(self.runner, "busy_s", None)
        if seconds is None:
            return None
        now = self.clock.now()
        return max(t0, now - seconds), now

    def _next_plan(self) -> tuple[Plan, float, float]:
        scheduler, clock = self.scheduler, self.clock
        while True:
            t0 = clock.now()
            self._let_in()
            scheduler.expire()
            plan = scheduler.schedule()
            self._left_out = plan.waiting is not None
            schedule_s = clock.now() - t0
            if plan.work or scheduler.news.finished or not self.has_work:
                return plan, t0, schedule_s
            events = [heap[0][0] for heap in (self._future, scheduler.deadlines) if heap and heap[0][0] > t0]
            if plan.wait_until is not None:
                events.append(plan.wait_until)
            elif scheduler.requests:
                why = f"; request {plan.waiting[0].request_id!r} waits: {plan.waiting[1]}" if plan.waiting else ""
                raise RuntimeError(f"there is work, and the scheduler scheduled nothing (a bug in schedule){why}")
            clock.wait_until(min(events))

    def _let_in(self) -> None:
        """Those whose arrival has come join the queue, if it has room for them."""
        scheduler, now = self.scheduler, self.clock.now()
        while self._future and self._future[0][0] <= now:
            # Whom a free lane awaits does not count, unless somebody was left out although a lane was free.
            room = 0 if self._left_out else len(scheduler.free_lanes)
            full = self.max_queue is not None and len(scheduler.waiting) >= self.max_queue + room
            if full and self.when_full == "wait":
                return
            request = heapq.heappop(self._future)[2]
            self._future_ids.remove(request.request_id)
            scheduler.add(request)
            if full:
                scheduler.reject(request, f"rejected: {self.max_queue} requests wait already (max_queue)")
            scheduler.expire()  # one that was outside for too long makes no room scarce

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
            heapq.heappush(self._future, (request.arrival, next(self._order), request))
            self._future_ids.add(request.request_id)
        self._let_in()

    def abort(self, request_id: str) -> bool:
        """Take a request back, whatever it is doing. False when there is none of that id (it may have finished)."""
        if request_id in self._future_ids:  # it arrives now, and ends like any other
            entry = next(entry for entry in self._future if entry[2].request_id == request_id)
            self._future.remove(entry)
            heapq.heapify(self._future)
            self._future_ids.remove(request_id)
            entry[2].arrival = min(entry[0], self.clock.now())
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
        self._steps = itertools.count()
        return self.trace
