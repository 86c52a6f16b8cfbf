"""What all stages share: the queue, the lanes, and `commit`. A stage adds its `schedule()`."""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterable, Mapping
from operator import attrgetter

from minibatcher.clock import Clock
from minibatcher.memory.allocator import Allocator
from minibatcher.plan import Plan
from minibatcher.request import FinishReason, Request, Status
from minibatcher.trace import Arrival, BlockMove, StepRecord, Waiting, Work

RANK = attrgetter("rank")
RUNNING = Status.RUNNING  # Python 3.11 takes longer to look it up than commit takes for a request


class Scheduler(ABC):
    """Requests wait in `waiting`, run in `running`, and leave for good in `commit` (or at once, in `abort`).

    max_num_seqs: lanes, so requests that run at the same time. max_model_len: tokens a request may have in all.
    eos_token_ids, vocab_size: the model's. allocator: who owns which blocks; None where nothing is paged (stage 1).
    """

    by_priority = False  # whether anybody looks at Request.priority

    def __init__(
        self,
        *,
        max_num_seqs: int = 16,
        max_model_len: int = 2048,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        allocator: Allocator | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs} is not allowed: at least 1 request must be able to run")
        if max_model_len < 2:
            raise ValueError(f"max_model_len={max_model_len} is not allowed: a prompt and an output need at least 2")
        if allocator and max_model_len > allocator.num_blocks * allocator.block_size:
            raise ValueError(
                f"max_model_len={max_model_len} is more than the pool holds: num_blocks={allocator.num_blocks} x "
                f"block_size={allocator.block_size} = {allocator.num_blocks * allocator.block_size} tokens. "
                "A request of that length could never finish; lower max_model_len or raise num_blocks"
            )
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.vocab_size = vocab_size
        self.allocator = allocator
        self.clock = Clock()  # the engine puts its own here
        self.tracing = True  # False leaves out of the records what only pictures need

        self.requests: dict[str, Request] = {}  # all that have not finished
        self.waiting: list[Request] = []  # both sorted by rank
        self.running: list[Request] = []
        self.deadlines: list[tuple[float, int, Request]] = []  # a heap
        self.count = itertools.count()
        self.free_lanes = list(range(max_num_seqs))  # a heap: the lowest free lane is taken first
        self.news = StepRecord()  # what happened since the last commit: the next record begins with it

    # -- requests come and go -----------------------------------------------------------------------------------------

    @abstractmethod
    def schedule(self) -> Plan:
        """Decide what the next step does, admit whom it admits, and say why the first one left out must wait."""

    def check(self, request: Request) -> None:
        """Refuse what could never run. Raises ValueError with the value, the limit and the remedy."""
        name = f"request {request.request_id!r}"
        if not isinstance(request.request_id, str):
            raise TypeError(f"{name}: a request_id is a text, not {type(request.request_id).__name__}")
        if request.status is not Status.WAITING or request.num_computed or request.output_token_ids:
            raise ValueError(f"{name} has been in an engine before: make a new Request")
        if request.request_id in self.requests:
            raise ValueError(f"{name} is already in the engine: take another request_id, or wait until it has finished")
        if request.num_prompt_tokens >= self.max_model_len:
            raise ValueError(
                f"{name}: the prompt has {request.num_prompt_tokens} tokens; with max_model_len={self.max_model_len} "
                f"at most {self.max_model_len - 1} leave room for an output. Shorten it, or raise max_model_len"
            )
        if request.priority and not self.by_priority:
            raise ValueError(
                f"{name}: priority={request.priority} would not be looked at: "
                "leave it at 0, or use stage 'preemptive' with policy='priority'"
            )
        if self.vocab_size is not None:
            for what, tokens in (
                ("prompt_token_ids", request.prompt_token_ids),
                ("stop_token_ids", request.params.stop_token_ids),
            ):
                if tokens and (min(tokens) < 0 or max(tokens) >= self.vocab_size):
                    outside = next(token for token in tokens if not 0 <= token < self.vocab_size)
                    raise ValueError(
                        f"{name}: {what} has {outside}; this model's ids are 0 to {self.vocab_size - 1}. "
                        "Use the tokenizer that belongs to the model"
                    )

    def add(self, request: Request) -> None:
        """Queue a request that `check` has let through."""
        params = request.params
        output = params.max_tokens if request.output_len is None else min(params.max_tokens, request.output_len)
        request.max_len = min(request.num_prompt_tokens + output, self.max_model_len)
        request.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)
        self.requests[request.request_id] = request
        request.rank = self.rank(request, request.arrival or 0.0)
        insort(self.waiting, request, key=RANK)
        if request.deadline_s is not None:
            deadline = (request.arrival or 0.0) + request.deadline_s
            heapq.heappush(self.deadlines, (deadline, next(self.count), request))
        self.news.arrived.append(
            Arrival(request.request_id, request.arrival or 0.0, request.num_prompt_tokens, params.max_tokens)
        )

    def rank(self, request: Request, time: float) -> tuple[float, float, int]:
        """Who comes first: (importance, time, a number that no other request has). First come, first served."""
        return 0.0, time, next(self.count)

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        while self.deadlines and self.deadlines[0][0] <= self.clock.now():
            request = heapq.heappop(self.deadlines)[2]
            if request.status is not Status.FINISHED:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> bool:
        """End a request now; what it held is free for the next step. False when there is none of that id."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        if request.status is not Status.RUNNING:
            self.waiting.remove(request)
        self.end(request, FinishReason.ABORT)
        self.drop_finished()
        return True

    def reject(self, request: Request, why: str) -> None:
        """End a request that has just been added, with `error`."""
        request.error = why
        self.waiting.remove(request)
        self.end(request, FinishReason.ERROR)

    def fail(self, plan: Plan, error: BaseException) -> None:
        """The model raised: the requests of this step end with `error`; those that wait go on."""
        for request in plan.work:
            if request.status is Status.RUNNING:
                request.error = f"{type(error).__name__}: {error}"
                self.end(request, FinishReason.ERROR)
        self.drop_finished()

    @property
    def has_work(self) -> bool:
        """Someone waits or runs, or there is news that no record has told yet."""
        return bool(self.requests or self.news.finished)

    # -- used by schedule() -------------------------------------------------------------------------------------------

    def admit(self, plan: Plan) -> Request:
        """The head of the queue gets the lowest free lane and runs. Its room has been taken already."""
        request = self.waiting.pop(0)
        (plan.admitted if request.status is Status.WAITING else plan.resumed).append(request)
        request.status = Status.RUNNING
        request.lane = heapq.heappop(self.free_lanes)
        insort(self.running, request, key=RANK)
        self.tell_blocks("take", request, request.block_table)
        return request

    def leave_waiting(self, plan: Plan, why: str) -> None:
        plan.waiting = (self.waiting[0], why, len(self.waiting) - 1)

    # -- the end of a step --------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, sampled: Mapping[Request, int | None]) -> StepRecord:
        """Advance the requests of the plan; the only place where a request advances.

        sampled: the new token of each request whose gap closed; None where its logits were not finite. What a request
        held is free when commit returns, so the next schedule() can give it away. Returns what happened; the times are
        the engine's to fill in.
        """
        record, self.news = self.news, StepRecord()
        if self.tracing:
            self.describe(plan, record)
        emitted = record.emitted
        before = len(record.finished)
        for request, n in plan.work.items():
            if request.status is not RUNNING:  # it ended while the model ran
                continue
            request.num_computed += n
            token_ids = request.token_ids
            if request.num_computed < len(token_ids):  # part of the gap is still open
                continue
            token = sampled[request]
            if token is None:
                request.error = "its logits were not finite (NaN or infinity)"
                self.end(request, FinishReason.ERROR, record)
                continue
            # From here on the new token is counted (num_tokens), but its keys and values are not written: that is
            # the gap of 1 that the next step closes.
            token_ids.append(token)
            emitted[request.request_id] = [token]
            stopped = token in request.stop_ids
            if request.on_token is not None:
                try:
                    stopped = request.on_token(token) or stopped
                except Exception as error:  # the user's code failed for this request alone
                    request.error = f"on_token raised {type(error).__name__}: {error}"
                    self.end(request, FinishReason.ERROR, record)
                    continue
            if request.status is not RUNNING:  # on_token aborted it
                continue
            if stopped and len(token_ids) - len(request.prompt_token_ids) > request.params.min_tokens:
                self.end(request, FinishReason.STOP, record)
            elif len(token_ids) >= request.max_len:
                self.end(request, FinishReason.LENGTH, record)
        if len(record.finished) > before:
            self.drop_finished()
        return record

    def end(self, request: Request, reason: FinishReason, record: StepRecord | None = None) -> None:
        """Finish a request and give back what it held. Call `drop_finished` afterwards."""
        record = self.news if record is None else record
        if self.allocator and request.block_table:
            self.tell_blocks("free", request, request.block_table, record)
            self.allocator.release(request)
        if request.status is Status.RUNNING:
            self.give_lane_back(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        record.finished.append((request.request_id, reason.value))

    def give_lane_back(self, request: Request) -> None:
        heapq.heappush(self.free_lanes, request.lane)

    def drop_finished(self) -> None:
        self.running = [request for request in self.running if request.status is RUNNING]

    # -- for the trace ------------------------------------------------------------------------------------------------

    def describe(self, plan: Plan, record: StepRecord) -> None:
        """Write down the plan, before commit moves anything."""
        record.admitted = [request.request_id for request in plan.admitted]
        record.resumed = [request.request_id for request in plan.resumed]
        record.preempted = list(plan.preempted.values())
        if plan.budget is not None:
            record.budget = plan.budget + sum(plan.work.values())
        for request, n in plan.work.items():
            start, end = request.num_computed, request.num_computed + n
            again = min(end, request.recomputed) - start
            if again < n:
                fresh = n - max(0, again)
                kind = "prefill" if end - fresh < request.num_prompt_tokens else "decode"
                record.work.append(Work(request.request_id, request.lane, kind, fresh, end))
            if again > 0:
                record.work.append(Work(request.request_id, request.lane, "recompute", again, start + again))
        if plan.waiting:
            request, why, behind = plan.waiting
            record.waiting = Waiting(request.request_id, why, behind)
        if self.allocator:
            record.kv = self.allocator.figures(self.running, plan)

    def tell_blocks(self, move: str, request: Request, blocks: list[int], record: StepRecord | None = None) -> None:
        if self.tracing and blocks:
            record = self.news if record is None else record
            record.blocks.append(BlockMove(request.request_id, move, list(blocks)))
