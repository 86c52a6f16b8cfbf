"""minibatcher: continuous batching of LLM inference, built up step by step."""

from minibatcher.engine import Engine
from minibatcher.llm import LLM, CompletionOutput, RequestOutput
from minibatcher.request import FinishReason, Request, SamplingParams
from minibatcher.stages import STAGES, build_engine
from minibatcher.trace import StepRecord, Trace

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "STAGES",
    "CompletionOutput",
    "Engine",
    "FinishReason",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "StepRecord",
    "Trace",
    "build_engine",
]
