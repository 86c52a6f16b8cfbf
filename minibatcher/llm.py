"""Text in, text out: tokenizer, stop strings and streaming around the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from minibatcher.engine import Engine
from minibatcher.measure.metrics import RequestMetrics, requests
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import DEFAULT_STAGE, build_engine, settings_for
from minibatcher.text import TextStream
from minibatcher.trace import Trace

Prompt = str | Sequence[int]


@dataclass
class CompletionOutput:
    """One answer. token_ids keeps an end token and the token that completed a stop string; text does not."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str


@dataclass
class RequestOutput:
    """The answers to one prompt, and how long they took, in seconds."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics | None
    error: str | None = None  # what went wrong, where finish_reason is `error`

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason


class LLM:
    """A model behind an engine of one stage.

        llm = LLM("smollm2", stage="iteration", max_num_seqs=8)
        outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8, temperature=0))

    model, tokenizer, dtype, device: as `load` takes them. settings: as `build_engine` takes them.
    """

    def __init__(
        self,
        model: Any = None,
        stage: str = DEFAULT_STAGE,
        *,
        tokenizer: Any = None,
        dtype: Any = None,
        device: Any = None,
        **settings: Any,
    ) -> None:
        settings_for(stage, settings)
        from minibatcher.model.load import load

        self.loaded = load(model, tokenizer=tokenizer, dtype=dtype, device=device)
        self.tokenizer = self.loaded.tokenizer
        self.engine: Engine = build_engine(stage, self.loaded, **settings)
        self._closed = False

    @property
    def trace(self) -> Trace:
        """The trace of the last call."""
        return self.engine.trace

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts (texts or lists of token ids), in their order. params: one for all, or one for each.

        Raises ValueError or TypeError, before anything has run, when one of them is refused.
        """
        if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
            prompts = [prompts]  # type: ignore[list-item, assignment]
        answers = self._answers(list(prompts), params)  # type: ignore[arg-type]
        self.engine.add_all(answer.request for answer in answers)
        self.engine.new_trace()
        try:
            while any(answer.request.finish_reason is None for answer in answers):
                self.engine.step()
        finally:
            self._take_back(*(answer.request for answer in answers))  # none is left unless the loop was interrupted
        metrics = requests(self.trace)
        return [answer.output(metrics.get(answer.request.request_id)) for answer in answers]

    def chat(
        self,
        messages: Sequence[dict[str, str]] | Sequence[Sequence[dict[str, str]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several: lists of {"role": ..., "content": ...}."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        return self.generate([self.chat_prompt(conversation) for conversation in conversations], params)  # type: ignore[arg-type]

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The token ids of a conversation up to the place where the assistant begins to speak."""
        tokenizer = self._need_tokenizer("chat")
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {self.loaded.name!r} has no chat template: use generate with a prompt")
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the answer piece by piece; joined, the pieces are the text that `generate` returns.

        Several streams may be open at once: they share the engine's steps. Closing one aborts its request.
        """
        self._need_tokenizer("stream")
        (answer,) = self._answers([prompt], params)
        self.engine.scheduler.check(answer.request)  # now, and not when the first piece is asked for
        return self._pieces(answer)

    def _pieces(self, answer: _Answer) -> Iterator[str]:
        request, stream = answer.request, answer.stream
        assert stream is not None
        self._require_open()
        self.engine.add(request)
        self.engine.new_trace()
        sent = 0
        try:
            while True:
                if request.finish_reason is not None:
                    stream.close()
                if (safe := stream.safe) > sent:
                    yield stream.text[sent:safe]  # meanwhile another stream may step, and this one's text grow
                    sent = safe
                elif stream.closed:
                    break
                else:
                    self.engine.step()
        finally:
            if not self._closed:
                self._take_back(request)
        if request.error:
            raise RuntimeError(f"the request ended with an error: {request.error}")

    def _take_back(self, *requests: Request) -> None:
        """End those that have not ended; if nobody else runs, a step without work tells this call's trace of it."""
        for request in requests:
            self.engine.abort(request.request_id)
        scheduler = self.engine.scheduler
        if scheduler.news.finished and not scheduler.requests:
            self.engine.step()

    def close(self) -> None:
        """Let go of the model and the pool; streams that are open end. The trace stays."""
        if self._closed:
            return
        self._take_back(*list(self.engine.scheduler.requests.values()))
        self._closed = True
        del self.loaded, self.engine.runner, self.engine.scheduler

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- from prompts to requests -------------------------------------------------------------------------------------

    def _answers(
        self, prompts: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[_Answer]:
        self._require_open()
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, {len(params)} params: give one params for all, or one for each")
        return [self._answer(prompt, p) for prompt, p in zip(prompts, params, strict=True)]

    def _answer(self, prompt: Prompt, params: SamplingParams) -> _Answer:
        text = prompt if isinstance(prompt, str) else None
        ids = self._need_tokenizer("a text prompt")(prompt).input_ids if text is not None else prompt
        request = Request(ids, params)  # type: ignore[arg-type]
        if params.stop:
            self._need_tokenizer("a stop string")
        stream = TextStream(self.tokenizer, request) if self.tokenizer is not None else None
        request.on_token = stream.push if stream else None
        return _Answer(request, text, stream)

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM was closed: make a new one")

    def _need_tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{what} needs a tokenizer, and this model came without one: LLM(model, tokenizer=...), or give "
                "prompts as token ids"
            )
        return self.tokenizer


@dataclass
class _Answer:
    """A request on its way, with its text; the tokenizer may be missing."""

    request: Request
    prompt: str | None
    stream: TextStream | None

    def output(self, metrics: RequestMetrics | None) -> RequestOutput:
        request = self.request
        if self.stream:
            self.stream.close()
        text = self.stream.text if self.stream else ""
        completion = CompletionOutput(0, text, request.output_token_ids, str(request.finish_reason))
        return RequestOutput(
            request.request_id, self.prompt, request.prompt_token_ids, [completion], metrics, request.error
        )
