"""A request is a gap to close.

A request has `num_tokens` tokens (prompt and output so far); `num_computed` of them have their keys and values in
the cache. The difference is its gap. Each step closes part of the gap of some requests. When a gap closes fully, the
model's last row is sampled, the request grows by a token, and its gap is 1 again: that is a decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index


class FinishReason(StrEnum):
    STOP = "stop"  # an end token, a stop id or a stop string
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"  # the user took it back
    ERROR = "error"  # the step failed, or its logits were not finite


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; its keys and values are gone
    SWAPPED = "swapped"  # waits again; its keys and values are in CPU memory
    FINISHED = "finished"


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the tokens of one request, with vLLM's names and meanings.

    temperature=0 is greedy. top_k=0 keeps all tokens. A seeded request draws the same tokens whatever else is in the
    batch. Stop strings, stop ids and end tokens are ignored until the output has more than `min_tokens` tokens.

    Raises ValueError or TypeError for a value out of its range, with the range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        set_field = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 (the class is frozen)
        set_field("stop", (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop))
        for name in ("max_tokens", "top_k", "min_tokens", "n"):
            set_field(name, _whole(name, getattr(self, name)))
        if self.seed is not None:
            set_field("seed", _whole("seed", self.seed))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            set_field(name, _number(name, getattr(self, name)))
        stop_ids = _listed("stop_token_ids", self.stop_token_ids)
        set_field("stop_token_ids", tuple(_whole("stop_token_ids", token) for token in stop_ids))

        if self.n != 1:
            raise ValueError(f"SamplingParams(n={self.n}): several completions a prompt are not built yet; use n=1")
        if self.logprobs is not None:
            raise ValueError(f"SamplingParams(logprobs={self.logprobs}): not built yet; leave it at None")
        _require("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        upper = f"from 0 to max_tokens ({self.max_tokens})"
        _require("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens, upper)
        _require("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 (greedy) or more")
        _require("top_p", self.top_p, 0 <= self.top_p <= 1, "from 0 to 1")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        _require("top_k", self.top_k, self.top_k >= -1, "1 or more, or 0 or -1 for all tokens")
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, 0 < penalty < math.inf, "above 0 (1 changes nothing)")
        _require("stop", self.stop, all(isinstance(s, str) and s for s in self.stop), "texts of at least 1 character")
        _require("stop_token_ids", self.stop_token_ids, all(t >= 0 for t in self.stop_token_ids), "ids of 0 or more")


@dataclass(eq=False, slots=True)  # compared by identity: two requests with the same prompt are two requests
class Request:
    """One prompt on its way through the engine.

    prompt_token_ids: at least one token id. request_id: the engine names a request that has none.
    arrival: seconds on the engine's clock; None means now.
    output_len: the true number of output tokens, if it is known in advance; only `reserve="oracle"` and "pow2" look.
    deadline_s: seconds after its arrival at which it ends with `abort`, waiting or running.
    on_token: called with each new token; it returns True to end the request with `stop`.

    Raises TypeError when the prompt is not a sequence of whole numbers, ValueError when it is empty.
    """

    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = ""
    priority: int = 0
    arrival: float | None = None
    deadline_s: float | None = None
    output_len: int | None = None
    on_token: Callable[[int], bool] | None = None

    # What follows belongs to the engine.
    status: Status = field(default=Status.WAITING, init=False)
    token_ids: list[int] = field(init=False)  # prompt and output; the one truth about the request's length
    num_computed: int = field(default=0, init=False)  # how many of them have keys and values in the cache
    block_table: list[int] = field(default_factory=list, init=False)  # logical block i lies in physical block_table[i]
    cpu_block_table: list[int] = field(default_factory=list, init=False)  # where they are while it is SWAPPED
    lane: int = field(default=-1, init=False)
    rank: tuple[float, float, int] = field(default=(0.0, 0.0, 0), init=False)  # who comes first: the smallest
    recomputed: int = field(default=0, init=False)  # tokens below this position were computed before a preemption
    num_preemptions: int = field(default=0, init=False)
    turn_began: int = field(default=0, init=False)  # num_tokens when it was admitted
    max_len: int = field(default=0, init=False)  # the request ends with `length` at this many tokens
    stop_ids: frozenset[int] = field(default=frozenset(), init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)  # what went wrong, when finish_reason is `error`

    def __post_init__(self) -> None:
        if isinstance(self.prompt_token_ids, str):
            raise TypeError("a Request takes token ids and was given a text: tokenize it first, or use LLM.generate")
        ids = _listed("prompt_token_ids", self.prompt_token_ids)
        self.prompt_token_ids = [_whole("prompt_token_ids", token) for token in ids]
        if not self.prompt_token_ids:
            raise ValueError("the prompt is empty (0 tokens): give at least 1 token, for example a start token")
        if not isinstance(self.params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, not {type(self.params).__name__}")
        self.priority = _whole("priority", self.priority)
        if self.output_len is not None:
            self.output_len = _whole("output_len", self.output_len)
            _require("output_len", self.output_len, self.output_len >= 1, "at least 1")
        if self.deadline_s is not None:
            self.deadline_s = _number("deadline_s", self.deadline_s)
            _require("deadline_s", self.deadline_s, self.deadline_s > 0, "seconds above 0")
        if self.arrival is not None:
            self.arrival = _number("arrival", self.arrival)
            _require("arrival", self.arrival, math.isfinite(self.arrival), "a time in seconds, or None for now")
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def gap(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.token_ids) - self.num_computed


def _whole(name: str, value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]  # accepts the integers of numpy and torch too
    except TypeError:
        raise TypeError(f"{name} takes whole numbers; {value!r} is {type(value).__name__}") from None


def _number(name: str, value: object) -> float:
    try:
        math.isfinite(value)  # type: ignore[arg-type]  # takes every kind of real number, and unlike float() no text
    except TypeError:
        raise TypeError(f"{name} takes a number; {value!r} is {type(value).__name__}") from None
    return float(value)  # type: ignore[arg-type]


def _listed(name: str, value: Iterable[object]) -> tuple[object, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise TypeError(f"{name} takes a list; {value!r} is {type(value).__name__}") from None


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name}={value!r} is not allowed: it must be {allowed}")
