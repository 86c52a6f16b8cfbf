"""What only a GPU can show: the compiled kernels in all types, in CUDA graphs, without synchronising, on large pools.

`python kernels/gpu_check.py` runs this file. It needs torch, triton and pytest alone, and no fixture.
"""

from functools import partial

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

from minibatcher_kernels.checks import INTERPRETED
from minibatcher_kernels.kv_write import kv_write
from minibatcher_kernels.paged_attention import paged_attention
from minibatcher_kernels.paged_decode import paged_decode
from minibatcher_kernels.paged_decode_naive import paged_decode_naive
from minibatcher_kernels.paged_decode_split import choose_num_splits, num_multiprocessors, paged_decode_split
from minibatcher_kernels.problem import random_problem

if INTERPRETED:
    pytest.skip("TRITON_INTERPRET is set, so nothing here would be compiled", allow_module_level=True)

DEVICE = "cuda"
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 1e-2}
each_type = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def check(out, answer):
    assert out.isfinite().all(), "the answer holds NaN or infinity"
    error = (out.double() - answer).abs().max().item() / max(1.0, answer.abs().max().item())
    assert error <= TOLERANCE[out.dtype], f"relative error {error:.1e}"


def decode_arguments(problem):
    return {name: value for name, value in vars(problem).items() if name != "cu_seqlens_q"}


@each_type
def test_decodes_of_many_lengths(dtype):
    problem = random_problem(range(0, 600, 7), num_kv_heads=2, group=4, head_dim=128, dtype=dtype, device=DEVICE)
    answer = problem.answer()
    for kernel in (paged_decode_naive, paged_decode, paged_decode_split):
        check(kernel(**decode_arguments(problem)), answer)
    check(paged_attention(**vars(problem), max_query_len=1), answer)


@each_type
@pytest.mark.parametrize(("head_dim", "window", "softcap"), [(96, None, None), (256, 100, 30.0)])
def test_chunks_and_decodes(dtype, head_dim, window, softcap):
    contexts, chunks = [700, 3, 513, 64, 0, 129], [700, 1, 300, 1, 0, 129]
    problem = random_problem(contexts, chunks, num_kv_heads=2, group=3, head_dim=head_dim, dtype=dtype, device=DEVICE)
    out = paged_attention(**vars(problem), window=window, softcap=softcap, max_query_len=700)
    check(out, problem.answer(window, softcap))


def test_one_long_context_is_split():
    problem = random_problem([8192], num_kv_heads=2, group=4, head_dim=128, dtype=torch.bfloat16, device=DEVICE)
    assert choose_num_splits(1, 2, 8192, num_multiprocessors(problem.query.device)) > 1
    check(paged_attention(**vars(problem), max_query_len=1), problem.answer())


def test_a_graph_replays_with_new_contents():
    """The engine may capture a step and change lengths and tables in place: nothing is fixed at capture but shapes."""
    make = partial(random_problem, [600, 40], num_kv_heads=2, group=4, head_dim=64, device=DEVICE)
    problem, other = make(seed=0), make(seed=2)
    paged_attention(**vars(problem), max_query_len=1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(**vars(problem), max_query_len=1)
    for name in ("query", "key_cache", "value_cache", "block_tables"):
        getattr(problem, name).copy_(getattr(other, name))
    problem.context_lens.copy_(torch.tensor([17, 40]))
    graph.replay()
    torch.cuda.synchronize()
    check(out, problem.answer())


def test_nothing_waits_for_the_gpu():
    problem = random_problem([300, 40], [200, 1], num_kv_heads=2, group=4, head_dim=64, device=DEVICE)
    new = torch.randn(2, 2, 64, device=DEVICE)
    slots = torch.tensor([0, -1], device=DEVICE)

    def step():
        kv_write(new, new, problem.key_cache, problem.value_cache, slots)
        paged_attention(**vars(problem), max_query_len=200)

    step()  # compiling may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pools_of_more_than_2_31_elements():
    """A block number times a stride must not wrap: the last blocks lie beyond what 32 bits can address."""
    free, _ = torch.cuda.mem_get_info()
    if free < 12 * 2**30:
        pytest.skip(f"needs 12 GiB of free GPU memory, {free / 2**30:.0f} are there")
    block_size, heads, head_dim = 16, 8, 128
    num_blocks = 2**31 // (block_size * heads * head_dim) + 8
    key_cache, value_cache = (
        torch.full((num_blocks, block_size, heads, head_dim), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        for _ in "kv"
    )
    tables = torch.arange(num_blocks - 1, num_blocks - 5, -1, dtype=torch.int32, device=DEVICE).view(2, 2)
    tokens = torch.arange(32, device=DEVICE)
    slots = (tables[:, tokens // block_size] * block_size + tokens % block_size).flatten().long()
    key, value = torch.randn(2, 64, heads, head_dim, device=DEVICE).bfloat16()
    kv_write(key, value, key_cache, value_cache, slots)
    query = torch.randn(2, heads, head_dim, device=DEVICE).bfloat16()
    lens = torch.full((2,), 32, dtype=torch.int32, device=DEVICE)
    cu_seqlens_q = torch.arange(3, dtype=torch.int32, device=DEVICE)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None].double(),
        *(rows.view(2, 32, heads, head_dim).transpose(1, 2).double() for rows in (key, value)),
        scale=0.1,
    )[:, :, 0]
    check(paged_attention(query, key_cache, value_cache, tables, lens, cu_seqlens_q, 0.1, max_query_len=1), expected)
    for kernel in (paged_decode_naive, paged_decode):
        check(kernel(query, key_cache, value_cache, tables, lens, 0.1), expected)


def test_cpu_tensors_are_refused_with_the_ways_out():
    problem = random_problem([20])
    with pytest.raises(ValueError, match="on the CPU, and Triton compiles for GPUs: .* TRITON_INTERPRET=1"):
        paged_attention(**vars(problem))
