"""Which attention serves: the Triton kernels on a GPU, PyTorch elsewhere."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Literal, get_args

import torch

from minibatcher.memory.pool import KVPool
from minibatcher.model.attention import Attention, TorchAttention

Backend = Literal["auto", "torch", "triton"]


def choose(
    asked: str, device: torch.device, layers: Sequence[tuple[int, int]] = (), block_size: int = 16
) -> tuple[str, str]:
    """(`torch` or `triton`, why). Raises ValueError when `triton` is asked for and cannot serve, with what to do."""
    if asked not in get_args(Backend):
        raise ValueError(f"attention_backend={asked!r} is unknown: choose from {', '.join(get_args(Backend))}")
    if asked == "torch":
        return "torch", "asked for"
    why_not = _why_not_triton(device, layers, block_size)
    if asked == "triton" and why_not:
        raise ValueError(f"attention_backend='triton': {why_not}. Use 'auto' or 'torch'")
    if asked == "triton":
        return "triton", "asked for"
    if device.type == "cpu":
        return "torch", "the device is a CPU, where Triton only has its interpreter, which is slow"
    return ("torch", why_not) if why_not else ("triton", "the device is a GPU")


def _why_not_triton(device: torch.device, layers: Sequence[tuple[int, int]], block_size: int) -> str:
    """Empty when the kernels can serve."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (there is none for macOS and Windows)"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "a CPU needs Triton's interpreter: set TRITON_INTERPRET=1 before anything imports triton or transformers"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        return f"{name} is older than compute capability 8.0, the oldest for which the kernels are made"
    if block_size not in (16, 32, 64):
        return f"block_size={block_size}, and the kernels are made for 16, 32 and 64"
    if odd := [head_dim for _, head_dim in layers if not 32 <= head_dim <= 256]:
        return f"the model's heads are {odd[0]} wide, and the kernels take 32 to 256"
    return ""


def make(name: str, pool: KVPool, max_num_seqs: int, max_model_len: int) -> Attention:
    if name == "torch":
        return TorchAttention(pool, max_num_seqs, max_model_len)
    from minibatcher.model.triton_attention import TritonAttention  # triton does not exist everywhere

    return TritonAttention(pool, max_num_seqs, max_model_len)
