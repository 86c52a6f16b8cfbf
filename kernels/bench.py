"""How fast the kernels are, in the currency that counts: bytes/s for decodes, operations/s for prompt chunks.

    python -m minibatcher_kernels.bench              (or python kernels/gpu_check.py, which needs no installation)

A decode must read every key and value once, so its time is judged against a plain copy of a large tensor, measured in
the same run: no kernel can read faster than the memory delivers. Beside it stand what PyTorch offers: its attention on
the same data gathered into a dense tensor, and FlexAttention over pages.

How the figures are made: a CUDA graph holds many calls, so launching costs next to nothing; device events time its
replays, and the median counts. The calls rotate through several pools, together four times the GPU's cache, so that
memory serves them and not the cache. Every answer is compared before it is timed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from minibatcher_kernels.paged_attention import paged_attention
from minibatcher_kernels.paged_decode import paged_decode
from minibatcher_kernels.paged_decode_naive import paged_decode_naive
from minibatcher_kernels.paged_decode_split import paged_decode_split
from minibatcher_kernels.problem import Problem

Call = Callable[[], Tensor]

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, DTYPE = 32, 8, 128, 16, torch.bfloat16
DECODES = ((1, 8192), (8, 4096), (64, 1024), (64, 4096), (256, 2048))  # (sequences, context of each)
PREFILL = (4, 512, 4096)  # sequences, new tokens of each, context of each with the new tokens
COPY_BYTES = 2**30
FLEX_PAGE = 128  # FlexAttention's own block of keys

# The bars: at least this share of the copy's bandwidth, and of SDPA's operations/s.
DECODE_BARS = {(64, 4096): ("paged_attention", 0.8), (256, 2048): ("paged_attention", 0.8), (1, 8192): ("split", 0.5)}
PREFILL_BAR = 0.5

DECODE_WAYS = ("naive", "decode", "split", "paged_attention", "sdpa", "gather + sdpa", "gather", "flex")


@dataclass(frozen=True)
class Shape:
    """The model and the machine. The test suite makes it tiny and runs everything on a CPU, where no figure counts."""

    device: torch.device
    dtype: torch.dtype = DTYPE
    num_heads: int = NUM_HEADS
    num_kv_heads: int = NUM_KV_HEADS
    head_dim: int = HEAD_DIM
    block_size: int = BLOCK_SIZE
    tolerance: float = 2e-2


@dataclass
class Report:
    """What was measured: a table for each kind of work, and the bars with what was reached."""

    bandwidth: float  # bytes/s of the copy, read plus written
    decodes: list[tuple[str, ...]] = field(default_factory=list)
    prefills: list[tuple[str, ...]] = field(default_factory=list)
    bars: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def median_seconds(calls: Sequence[Callable[[], object]], device: torch.device, replays: int = 20) -> float:
    """Seconds for one call, the median over replays of a graph that makes all of them."""
    if device.type == "cpu":  # a rehearsal: nothing to amortise, and no figure worth having
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)

    # Compiling and warming up may synchronise, which a capture forbids: they come first, on a stream of their own.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    repeats = -(-8 // len(calls))  # at least 8 calls in a graph, so that its own launch is a small part
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    seconds = []
    for replay in range(replays + 2):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if replay >= 2:  # the first two warm up
            seconds.append(start.elapsed_time(end) / 1000 / (repeats * len(calls)))
    return statistics.median(seconds)


def copy_bandwidth(device: torch.device, size: int = COPY_BYTES) -> float:
    """Bytes/s of a device-to-device copy of `size` bytes, counting those read and those written."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds([lambda: target.copy_(source)], device)


def make_pools(shape: Shape, num_seqs: int, query_len: int, context: int) -> list[Problem]:
    """Pools with random keys and values behind one random block table, as many as it takes to overflow the cache."""
    blocks = context // shape.block_size
    generator = torch.Generator(shape.device).manual_seed(0)
    random = partial(torch.randn, generator=generator, device=shape.device, dtype=shape.dtype)
    order = torch.randperm(num_seqs * blocks, generator=generator, device=shape.device)
    cache_shape = (num_seqs * blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    pool_bytes = 2 * num_seqs * context * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    on_gpu = shape.device.type == "cuda"
    cache_bytes = torch.cuda.get_device_properties(shape.device).L2_cache_size if on_gpu else 0
    return [
        Problem(
            query=random(num_seqs * query_len, shape.num_heads, shape.head_dim),
            key_cache=random(cache_shape),
            value_cache=random(cache_shape),
            block_tables=order.to(torch.int32).view(num_seqs, blocks),
            context_lens=torch.full((num_seqs,), context, dtype=torch.int32, device=shape.device),
            cu_seqlens_q=torch.arange(num_seqs + 1, dtype=torch.int32, device=shape.device) * query_len,
            scale=shape.head_dim**-0.5,
        )
        for _ in range(max(1, -(-4 * cache_bytes // pool_bytes)))
    ]


def gather(pool: Problem) -> tuple[Tensor, Tensor]:
    """Keys and values of all sequences as dense tensors [num_seqs, Hkv, context, D]: what PyTorch's attention takes."""
    num_seqs = pool.block_tables.shape[0]
    _, _, num_kv_heads, head_dim = pool.key_cache.shape
    return tuple(
        cache.index_select(0, pool.block_tables.flatten()).view(num_seqs, -1, num_kv_heads, head_dim).transpose(1, 2)
        for cache in (pool.key_cache, pool.value_cache)
    )


def sdpa_decode(pool: Problem, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's attention for one query of each sequence: [num_seqs, Hq, D]."""
    query = pool.query[:, :, None]
    return scaled_dot_product_attention(query, key, value, scale=pool.scale, enable_gqa=True)[:, :, 0]


def gather_then_sdpa(pool: Problem) -> Tensor:
    """What an engine without a paged kernel does at every layer of every step."""
    return sdpa_decode(pool, *gather(pool))


def flex_mask(num_seqs: int, pages: int, order: Tensor) -> BlockMask:
    """Sequence b attends to its own pages of the pool, in full: order [num_seqs * pages] says which they are."""
    device = order.device
    owner = torch.empty_like(order)
    owner[order] = torch.arange(num_seqs, device=device).repeat_interleave(pages)
    none = torch.zeros((num_seqs, 1, 1), dtype=torch.int32, device=device)
    indices = torch.zeros((num_seqs, 1, 1, num_seqs * pages), dtype=torch.int32, device=device)
    indices[:, 0, 0, :pages] = order.view(num_seqs, pages)
    return BlockMask.from_kv_blocks(
        none,
        torch.zeros_like(indices),
        full_kv_num_blocks=none + pages,
        full_kv_indices=indices,
        BLOCK_SIZE=(128, FLEX_PAGE),
        mask_mod=lambda b, h, q, kv: owner[kv // FLEX_PAGE] == b,
        seq_lengths=(1, num_seqs * pages * FLEX_PAGE),
    )


def flex_calls(shape: Shape, pools: Sequence[Problem]) -> list[Call]:
    """FlexAttention over pages of 128 tokens that hold the same keys and values, scattered the same way."""
    num_seqs, context = pools[0].block_tables.shape[0], int(pools[0].context_lens[0])
    pages = context // FLEX_PAGE
    order = torch.randperm(num_seqs * pages, device=shape.device)
    mask = flex_mask(num_seqs, pages, order)
    flex = torch.compile(flex_attention, dynamic=False) if shape.device.type == "cuda" else flex_attention

    def paged(dense: Tensor) -> Tensor:  # [num_seqs, Hkv, context, D] to one sequence of scattered pages
        rows = dense.transpose(1, 2).reshape(num_seqs * pages, FLEX_PAGE, shape.num_kv_heads, shape.head_dim)
        pool = torch.empty_like(rows)
        pool[order] = rows
        return pool.view(1, -1, shape.num_kv_heads, shape.head_dim).transpose(1, 2)

    def call(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return flex(query[:, :, None], key, value, block_mask=mask, scale=scale, enable_gqa=True)[:, :, 0]

    return [partial(call, pool.query, *map(paged, gather(pool)), pool.scale) for pool in pools]


def check(shape: Shape, name: str, call: Call, expected: Tensor) -> None:
    """A wrong answer is not worth timing. Raises RuntimeError."""
    error = (call().double() - expected.double()).abs().max().item() / expected.double().abs().max().item()
    if not error <= shape.tolerance:
        raise RuntimeError(f"{name} is wrong: relative error {error:.1e}, allowed is {shape.tolerance:.1e}")


def bench_decode(shape: Shape, num_seqs: int, context: int, report: Report) -> None:
    """Every way to decode one batch, in microseconds and as a share of the copy's bandwidth."""
    pools = make_pools(shape, num_seqs, 1, context)
    expected = gather_then_sdpa(pools[0])

    def decodes(kernel: Callable[..., Tensor]) -> list[Call]:
        return [
            partial(kernel, p.query, p.key_cache, p.value_cache, p.block_tables, p.context_lens, p.scale) for p in pools
        ]

    ways: dict[str, Callable[[], list[Call]]] = {
        "naive": lambda: decodes(paged_decode_naive),
        "decode": lambda: decodes(paged_decode),
        "split": lambda: decodes(paged_decode_split),
        "paged_attention": lambda: [partial(paged_attention, **vars(pool), max_query_len=1) for pool in pools],
        "sdpa": lambda: [partial(sdpa_decode, pool, *gather(pool)) for pool in pools],
        "gather + sdpa": lambda: [partial(gather_then_sdpa, pool) for pool in pools],
        "gather": lambda: [partial(gather, pool) for pool in pools],
        "flex": lambda: flex_calls(shape, pools),
    }
    seconds: dict[str, float] = {}
    for name, make_calls in ways.items():
        try:
            calls = make_calls()
            if name != "gather":
                check(shape, name, calls[0], expected)
            seconds[name] = median_seconds(calls, shape.device)
        except Exception as error:
            if name not in ("sdpa", "flex"):  # ours must work; another's may lack the memory or not compile here
                raise
            message = " ".join(str(error).split())[:200]
            report.notes.append(f"{name} at ({num_seqs}, {context}) failed: {type(error).__name__}: {message}")

    pool_bytes = 2 * num_seqs * context * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    share = {name: pool_bytes / second / report.bandwidth for name, second in seconds.items()}
    cells = [f"{seconds[n] * 1e6:.0f} ({share[n]:.2f})" if n in seconds else "-" for n in DECODE_WAYS]
    report.decodes.append((f"({num_seqs}, {context})", f"{pool_bytes / 2**20:.0f}", *cells))
    if (num_seqs, context) in DECODE_BARS:
        name, bar = DECODE_BARS[num_seqs, context]
        text = f"decode ({num_seqs}, {context}): {name} at {share[name]:.2f} of the copy's bandwidth, at least {bar}"
        report.bars.append((text, share[name] >= bar))
    ratio = seconds["gather + sdpa"] / seconds["paged_attention"]
    text = f"decode ({num_seqs}, {context}): paged_attention {ratio:.2f} times as fast as gather + sdpa, more than 1"
    report.bars.append((text, ratio > 1))


def bench_prefill(shape: Shape, num_seqs: int, query_len: int, context: int, report: Report) -> None:
    """Prompt chunks at the end of a context, in operations/s, beside SDPA on dense keys and values for each head."""
    pools = make_pools(shape, num_seqs, query_len, context)
    group = shape.num_heads // shape.num_kv_heads
    # Row i of a chunk sees context - query_len + i + 1 keys; each takes a multiply and an add for q k and for p v.
    seen = sum(range(context - query_len + 1, context + 1))
    operations = 4 * num_seqs * shape.num_heads * shape.head_dim * seen

    def dense_call(pool: Problem) -> Call:
        query = pool.query.view(num_seqs, query_len, shape.num_heads, shape.head_dim).transpose(1, 2).contiguous()
        key, value = (dense.repeat_interleave(group, dim=1).contiguous() for dense in gather(pool))
        mask = causal_lower_right(query_len, context)
        return partial(scaled_dot_product_attention, query, key, value, attn_mask=mask, scale=pool.scale)

    paged = [partial(paged_attention, **vars(pool), max_query_len=query_len) for pool in pools]
    dense = [dense_call(pool) for pool in pools]
    check(shape, "paged_attention", paged[0], dense[0]().transpose(1, 2).reshape(pools[0].query.shape))
    rates = [operations / median_seconds(calls, shape.device) for calls in (paged, dense)]
    ratio = rates[0] / rates[1]
    name = f"{num_seqs} chunks of {query_len}, context {context}"
    report.prefills.append((name, *(f"{rate / 1e12:.1f}" for rate in rates), f"{ratio:.2f}"))
    text = f"prefill: paged_attention at {ratio:.2f} of SDPA's operations/s, at least {PREFILL_BAR}"
    report.bars.append((text, ratio >= PREFILL_BAR))


def run(
    shape: Shape,
    decodes: Sequence[tuple[int, int]] = DECODES,
    prefill: tuple[int, int, int] = PREFILL,
    copy_bytes: int = COPY_BYTES,
) -> Report:
    """Measure everything. A case that does not fit the GPU's memory is left out, with a note."""
    report = Report(bandwidth=copy_bandwidth(shape.device, copy_bytes))
    cases = [partial(bench_decode, shape, *case, report) for case in decodes]
    for case in [*cases, partial(bench_prefill, shape, *prefill, report)]:
        try:
            case()
        except torch.OutOfMemoryError:
            report.notes.append(f"{case.func.__name__}{case.args[1:-1]} does not fit this GPU's memory")
        if shape.device.type == "cuda":
            torch.cuda.empty_cache()
    return report


def markdown(report: Report) -> str:
    """The report as tables in Markdown."""
    decode_head = ("(sequences, context)", "MiB", *DECODE_WAYS)
    prefill_head = ("prompt chunks", "paged_attention, 10^12/s", "SDPA, 10^12/s", "ratio")
    return "\n".join(
        [
            f"A copy moves {report.bandwidth / 1e9:.0f} GB/s, read plus written.",
            "",
            "Decodes: microseconds, and in brackets the bytes of keys and values over that time as a share of the",
            "copy's bandwidth. SDPA alone reads keys and values that lie densely already.",
            "",
            *table([decode_head, *report.decodes]),
            "",
            *table([prefill_head, *report.prefills]),
            "",
            *table([("bar", "met"), *((text, "yes" if met else "NO") for text, met in report.bars)]),
            *([""] if report.notes else []),
            *(f"Note: {note}" for note in report.notes),
        ]
    )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a Markdown table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def main() -> int:
    if not torch.cuda.is_available():
        print("The benchmark needs a GPU that PyTorch can use, and there is none here.", file=sys.stderr)
        return 2
    report = run(Shape(torch.device("cuda")))
    print(markdown(report))
    return 0 if all(met for _, met in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
