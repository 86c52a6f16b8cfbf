"""The Triton kernels against the specification in float64.

Without a GPU the kernels run in Triton's interpreter, which must be chosen before triton is first imported; with one
they are compiled and run on it. bfloat16 is tested on a GPU alone, because the interpreter multiplies it wrongly.
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

os.environ.update({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")

from minibatcher_kernels import paged_attention as paged_attention_module
from minibatcher_kernels import paged_decode as paged_decode_module
from minibatcher_kernels import paged_decode_split as paged_decode_split_module
from minibatcher_kernels.checks import INTERPRETED
from minibatcher_kernels.kv_write import kv_write
from minibatcher_kernels.paged_attention import paged_attention
from minibatcher_kernels.paged_decode import paged_decode
from minibatcher_kernels.paged_decode_naive import paged_decode_naive
from minibatcher_kernels.paged_decode_split import choose_num_splits, paged_decode_split
from minibatcher_kernels.problem import Problem, random_problem

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU and not INTERPRETED:
    raise RuntimeError("triton was imported before this file, without TRITON_INTERPRET=1: set it in conftest.py")

F32, F16 = torch.float32, torch.float16
TOLERANCE = {F32: 1e-5, F16: 4e-3}  # of the answer's greatest value; float16 rounds weights and answers to 11 bits
TILE_EDGES = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)  # of blocks of 16 to 64, tiles of 16 to 64


def attend(problem, **choices):
    return paged_attention(**vars(problem), max_query_len=int(problem.cu_seqlens_q.diff().max()), **choices)


def attend_len(problem, max_query_len):
    return paged_attention(**vars(problem), max_query_len=max_query_len)


def decode_arguments(problem):
    return {name: value for name, value in vars(problem).items() if name != "cu_seqlens_q"}


def decode_with(kernel, **choices):
    return lambda problem: kernel(**decode_arguments(problem), **choices)


DECODES = {
    "naive": decode_with(paged_decode_naive),
    "decode": decode_with(paged_decode),
    "split": decode_with(paged_decode_split, num_splits=3),
    "paged_attention": attend,
}
each_decode = pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in DECODES.items()])
each_type = pytest.mark.parametrize("dtype", [F32, F16], ids=["float32", "float16"])
interpreter_only = pytest.mark.skipif(ON_GPU, reason="values on a GPU are not checked: it would make the CPU wait")


def check(out, answer):
    """No value is further from the specification than the type allows; NaN is never near."""
    assert out.shape == answer.shape
    assert out.isfinite().all(), "the answer holds NaN or infinity"
    if out.numel() == 0:
        return
    error = (out.double() - answer).abs().max().item() / max(1.0, answer.abs().max().item())
    assert error <= TOLERANCE[out.dtype], f"relative error {error:.1e}"


def make(*args, **kwargs):
    return random_problem(*args, device=DEVICE, **kwargs)


# Writing keys and values


@each_type
@pytest.mark.parametrize(
    ("head_dim", "num_kv_heads", "block_size"), [(32, 1, 16), (80, 3, 32), (96, 8, 16), (256, 4, 64)]
)
def test_kv_write_fills_its_slots_and_no_others(dtype, head_dim, num_kv_heads, block_size):
    torch.manual_seed(0)
    caches = [torch.full((5, block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE) for _ in "kv"]
    # As transformers hands them over: [heads, tokens, head_dim], seen as [tokens, heads, head_dim].
    new = [torch.randn(num_kv_heads, 7, head_dim, device=DEVICE).to(dtype).transpose(0, 1) for _ in "kv"]
    slots = torch.randperm(5 * block_size, device=DEVICE)[:7]
    slots[2] = -1
    kv_write(*new, *caches, slots)
    for cache, rows in zip(caches, new, strict=True):
        expected = torch.full_like(cache, torch.nan)
        for row, slot in zip(rows, slots.tolist(), strict=True):
            if slot >= 0:
                expected[slot // block_size, slot % block_size] = row
        assert torch.equal(cache.nan_to_num(nan=-7.0), expected.nan_to_num(nan=-7.0))


def test_kv_write_takes_int32_slots_and_no_tokens_at_all():
    caches = [torch.zeros(2, 16, 1, 32, device=DEVICE) for _ in "kv"]
    new = torch.ones(2, 1, 32, device=DEVICE)
    kv_write(new, new, *caches, torch.tensor([31, -1], dtype=torch.int32, device=DEVICE))
    kv_write(new[:0], new[:0], *caches, torch.empty(0, dtype=torch.int64, device=DEVICE))
    assert [cache.sum().item() for cache in caches] == [32, 32] and caches[0][1, 15].min() == 1


# Attention against the specification


@each_type
@each_decode
@pytest.mark.parametrize("block_size", [16, 64])
def test_decode_at_every_tile_edge(run, dtype, block_size):
    problem = make(TILE_EDGES, group=2, head_dim=64, block_size=block_size, dtype=dtype)
    check(run(problem), problem.answer())


@each_type
@each_decode
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_decode_with_every_head_size(run, dtype, head_dim):
    problem = make([0, 5, 40, 70], num_kv_heads=2, group=2, head_dim=head_dim, dtype=dtype)
    check(run(problem), problem.answer())


@each_type
@each_decode
@pytest.mark.parametrize(("group", "block_size"), [(1, 64), (3, 16), (4, 32), (8, 16)])
def test_decode_with_every_group_and_block_size(run, dtype, group, block_size):
    problem = make([70, 1, 33], num_kv_heads=2, group=group, block_size=block_size, shared_blocks=1, dtype=dtype)
    check(run(problem), problem.answer())


@each_type
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (None, 4.0), (1, 4.0), (64, 30.0)])
def test_mixed_chunks_and_decodes(dtype, head_dim, window, softcap):
    """A first chunk, a later chunk, decodes, a chunk longer than a tile of rows, an idle and an empty sequence."""
    contexts, chunks = [20, 70, 1, 65, 140, 33, 0], [20, 6, 1, 1, 70, 0, 0]
    problem = make(contexts, chunks, group=3, head_dim=head_dim, dtype=dtype)
    check(attend(problem, window=window, softcap=softcap), problem.answer(window, softcap))


@st.composite
def batches(draw):
    """Anything the engine could ask for, and a little more: chunks longer than their context."""
    contexts = draw(st.lists(st.sampled_from(TILE_EDGES), min_size=1, max_size=4))
    return make(
        contexts,
        [draw(st.one_of(st.just(1), st.integers(0, min(context + 2, 40)))) for context in contexts],
        num_kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 3, 4, 8])),
        head_dim=draw(st.sampled_from([32, 64, 80, 96, 128, 256])),
        block_size=draw(st.sampled_from([16, 32, 64])),
        shared_blocks=draw(st.integers(0, 2)),
        dtype=draw(st.sampled_from([F32, F16])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(batches(), st.sampled_from([None, 1, 7, 16, 50]), st.sampled_from([None, 2.0, 30.0]))
def test_any_batch(problem, window, softcap):
    check(attend(problem, window=window, softcap=softcap), problem.answer(window, softcap))


@pytest.mark.parametrize("num_splits", [1, 2, 5, 64])
def test_any_number_of_splits(num_splits):
    """With 64 parts most are empty: they must weigh nothing."""
    problem = make([0, 64, 200], group=2)
    check(paged_decode_split(**decode_arguments(problem), num_splits=num_splits), problem.answer())


@each_decode
def test_views_with_strides_need_no_copy(run):
    """Queries as transformers hands them over, a slice of a wider table, and caches that share one tensor."""
    problem = make([40, 17], num_kv_heads=2, group=2)
    queries = problem.query.transpose(0, 1).contiguous().transpose(0, 1)
    key_cache, value_cache = torch.stack([problem.key_cache, problem.value_cache], dim=1).unbind(1)
    tables = torch.cat([problem.block_tables, problem.block_tables], dim=1)[:, : problem.block_tables.shape[1]]
    assert not queries.is_contiguous() and not key_cache.is_contiguous() and not tables.is_contiguous()
    view = Problem(queries, key_cache, value_cache, tables, problem.context_lens, problem.cu_seqlens_q, problem.scale)
    check(run(view), problem.answer())


@each_decode
def test_large_scores_do_not_overflow(run):
    problem = make([33, 64], group=2)
    problem.query.mul_(1000)
    check(run(problem), problem.answer())


def test_no_sequences_and_no_tokens():
    problem = make([], [])
    assert attend_len(problem, 1).shape == (0, 1, 32)
    for run in (DECODES["naive"], DECODES["decode"], DECODES["split"]):
        assert run(problem).shape == (0, 1, 32)
    assert attend_len(make([5, 6], [0, 0]), 0).shape == (0, 1, 32)


def test_max_query_len_may_be_an_upper_bound_or_missing():
    problem = make([20, 40], [3, 1], group=3)
    for max_query_len in (3, 50, None):
        check(attend_len(problem, max_query_len), problem.answer())


# Kinds of bugs that real engines had


@each_decode
def test_nan_in_unwritten_slots_changes_nothing(run):
    """vllm-project/vllm#641, Dao-AILab/flash-attention#1745: 0 x NaN is NaN. The pool of `make` is full of NaN."""
    problem = make([1, 17, 63], group=2, head_dim=80)
    for cache in (problem.key_cache, problem.value_cache):
        assert cache.isnan().any()
    dirty = run(problem)
    for cache in (problem.key_cache, problem.value_cache):
        cache.nan_to_num_(nan=0.0)
    assert torch.equal(dirty, run(problem))


@each_decode
def test_a_padded_row_with_context_0_gives_0(run):
    out = run(make([0, 20, 0], group=3))
    assert (out[[0, 2]] == 0).all() and (out[1] != 0).all()


@each_decode
def test_rows_of_a_batch_do_not_mix(run):
    """skyzh/tiny-llm#80: a reduction without its axis. Each row alone gives what it gives in the batch, bit by bit."""
    problem = make([5, 40, 70], num_kv_heads=2, group=3)
    together = run(problem)
    for seq in range(3):
        one = slice(seq, seq + 1)
        alone = Problem(
            problem.query[one],
            problem.key_cache,
            problem.value_cache,
            problem.block_tables[one],
            problem.context_lens[one],
            problem.cu_seqlens_q[:2],
            problem.scale,
        )
        assert torch.equal(run(alone), together[one])


@each_decode
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_nan_in_one_query_stays_in_its_row_and_stays_nan(run):
    """The engine ends a request whose logits are not finite: a NaN must neither spread nor be hidden as 0."""
    problem = make([20, 20], group=2)
    problem.query[0, 1] = torch.nan
    out = run(problem)
    assert out[0, 1].isnan().all() and out[0, 0].isfinite().all() and out[1].isfinite().all()


# The tests can fail

MUTANTS = {
    "values are not masked": ("mask=v_mask, other=0.0", "mask=v_mask | True"),
    "position is one too far": ("position = context - n + i\n", "position = context - n + i + 1\n"),
    "position is one too near": ("position = context - n + i\n", "position = context - n + i - 1\n"),
    "the window is one too wide": ("> position[:, None] - WINDOW", ">= position[:, None] - WINDOW"),
    "tiles before the window are kept out too early": ("- WINDOW + 1, 0)", "- WINDOW + 1 + BLOCK_N, 0)"),
    "the last tile is forgotten": ("range(begin, end, BLOCK_N)", "range(begin, end - 1, BLOCK_N)"),
    "an empty row is divided by 0": ("tl.where(l == 0, 1.0, l)", "l"),
    "the sum mixes rows": ("tl.sum(p, axis=1)", "tl.sum(p)"),
    "the old sum is not rescaled": ("l * alpha +", "l +"),
    "blocks of the neighbouring sequence": ("seq * table_stride_seq", "0 * table_stride_seq"),
    "heads of another group": ("kv_head * cache_stride_head", "0 * cache_stride_head"),
    "the soft cap is half as large": ("s = SOFTCAP * LOG2E", "s = 0.5 * SOFTCAP * LOG2E"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_is_caught(name, tmp_path):
    """The checks above must tell a wrong kernel from a right one: each mutant is the kernel with one change."""
    problem = make([0, 20, 70, 129], [1, 3, 1, 66], num_kv_heads=2, group=2)
    window, softcap = 30, 4.0
    check(attend(problem, window=window, softcap=softcap), problem.answer(window, softcap))
    mutant = load_mutant(tmp_path, paged_attention_module, *MUTANTS[name])
    out = mutant.paged_attention(**vars(problem), window=window, softcap=softcap, max_query_len=66)
    with pytest.raises(AssertionError):
        check(out, problem.answer(window, softcap))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("change", "replacement"), [("mask=v_mask, other=0.0", "mask=v_mask | True"), ("l * alpha +", "l +")]
)
@pytest.mark.parametrize("module", [paged_decode_module, paged_decode_split_module], ids=["decode", "split"])
def test_a_wrong_decode_is_caught(module, change, replacement, tmp_path):
    problem = make([0, 20, 70, 129], num_kv_heads=2, group=2)
    mutant = load_mutant(tmp_path, module, change, replacement)
    out = getattr(mutant, module.__name__.rpartition(".")[2])(**decode_arguments(problem))
    with pytest.raises(AssertionError):
        check(out, problem.answer())


def load_mutant(folder: Path, module, change: str, replacement: str):
    source = Path(module.__file__).read_text()
    assert change in source, f"the kernel has no {change!r} any more: adapt the mutant"
    (folder / "mutant.py").write_text(source.replace(change, replacement))
    spec = importlib.util.spec_from_file_location("mutant", folder / "mutant.py")
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    return mutant


# When to split


def test_splits_only_where_the_gpu_would_idle():
    assert choose_num_splits(num_seqs=64, num_kv_heads=8, max_context=4096, multiprocessors=132) == 1
    assert choose_num_splits(num_seqs=17, num_kv_heads=8, max_context=4096, multiprocessors=132) == 1
    assert choose_num_splits(num_seqs=8, num_kv_heads=8, max_context=4096, multiprocessors=132) == 5
    assert choose_num_splits(num_seqs=1, num_kv_heads=8, max_context=8192, multiprocessors=132) == 32  # 256 tokens each
    assert choose_num_splits(num_seqs=1, num_kv_heads=1, max_context=2**20, multiprocessors=132) == 64
    assert choose_num_splits(num_seqs=1, num_kv_heads=8, max_context=100, multiprocessors=132) == 1
    assert choose_num_splits(num_seqs=0, num_kv_heads=8, max_context=4096, multiprocessors=132) == 1


def test_paged_attention_splits_pure_decodes_alone(monkeypatch):
    calls = []

    def split(*args, **kwargs):
        calls.append(kwargs["num_splits"])
        return paged_decode_split(*args, **kwargs)

    monkeypatch.setattr(paged_attention_module, "num_multiprocessors", lambda device: 8)
    monkeypatch.setattr(paged_attention_module, "paged_decode_split", split)
    decodes, chunk = make([600, 3], group=3), make([600, 3], [2, 1], group=3)
    check(attend(decodes), decodes.answer())
    assert calls == [2]
    check(attend(decodes, window=9), decodes.answer(window=9))
    check(attend(decodes, softcap=9.0), decodes.answer(softcap=9.0))
    check(attend(chunk), chunk.answer())
    assert calls == [2]


# What the wrappers refuse


def replaced(**changes):
    """A good decode, with some arguments made bad."""
    arguments = vars(make([20, 40], num_kv_heads=2, group=2))
    return arguments | {name: change(arguments[name]) for name, change in changes.items()}


REFUSED = [
    ({"query": lambda q: q.half()}, TypeError, "query is torch.float16 and the cache torch.float32: convert"),
    ({"key_cache": lambda k: k.double()}, TypeError, "key_cache is torch.float64, allowed are .*use the reference"),
    ({"value_cache": lambda v: v.half()}, TypeError, "use one type for both"),
    ({"key_cache": lambda k: k[:, :, 0]}, ValueError, r"must both be \[num_blocks, block_size, num_kv_heads, head_dim"),
    ({"value_cache": lambda v: v[:-1]}, ValueError, "must both be"),
    ({"value_cache": lambda v: v.transpose(0, 1).contiguous().transpose(0, 1)}, ValueError, "same strides"),
    ({"query": lambda q: q[0]}, ValueError, r"query must be \[tokens, num_heads, 32\]"),
    ({"query": lambda q: q[..., :16]}, ValueError, "query must be .* got "),
    ({"query": lambda q: q[:, :3]}, ValueError, "3 heads and the cache 2: the first must be a multiple"),
    ({"query": lambda q: q.repeat(1, 1, 2)[..., ::2]}, ValueError, "stride 1 along head_dim.*contiguous"),
    ({"block_tables": lambda t: t.long()}, TypeError, "block_tables is torch.int64, allowed are .*torch.int32"),
    ({"block_tables": lambda t: t[0]}, ValueError, r"block_tables must be \[num_seqs, max_blocks\]"),
    ({"block_tables": lambda t: t.t().contiguous().t()}, ValueError, "stride 1 along its last"),
    ({"context_lens": lambda c: c[:1]}, ValueError, r"context_lens must have shape \[2\], got \[1\]"),
    ({"context_lens": lambda c: c.float()}, TypeError, "context_lens is torch.float32"),
    ({"query": lambda q: q.to("meta")}, ValueError, "must be on one device, got .*meta"),
]


@pytest.mark.parametrize(("changes", "exception", "message"), REFUSED)
def test_bad_arguments_are_refused_with_a_reason(changes, exception, message):
    arguments = replaced(**changes)
    with pytest.raises(exception, match=message):
        paged_attention(**arguments, max_query_len=1)
    del arguments["cu_seqlens_q"]
    for kernel in (paged_decode_naive, paged_decode, paged_decode_split):
        with pytest.raises(exception, match=message):
            kernel(**arguments)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"window": 0}, "window is 0: give the number of positions"),
        ({"softcap": -1.0}, "softcap is -1.0: give a positive cap"),
        ({"max_query_len": 0}, "max_query_len is 0 with 2 queries"),
    ],
)
def test_bad_choices_are_refused_with_a_reason(choices, message):
    with pytest.raises(ValueError, match=message):
        paged_attention(**replaced(), **choices)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((3, 8, 1, 64), "block_size is 8, allowed are"), ((3, 16, 1, 16), "head_dim is 16, allowed are 32 to 256")],
)
def test_pools_that_no_kernel_supports_are_refused(shape, message):
    cache, new = torch.zeros(shape, device=DEVICE), torch.zeros(1, *shape[2:], device=DEVICE)
    with pytest.raises(ValueError, match=message):
        kv_write(new, new, cache, cache, torch.zeros(1, dtype=torch.int64, device=DEVICE))


def test_decode_and_split_refuse_what_they_cannot_do():
    chunk = decode_arguments(make([20, 40], [3, 1]))
    for kernel in (paged_decode_naive, paged_decode, paged_decode_split):
        with pytest.raises(
            ValueError, match="one query for each sequence, got 4 queries and 2 block tables: use paged_attention"
        ):
            kernel(**chunk)
    with pytest.raises(ValueError, match="num_splits is 65, allowed are 1 to 64"):
        paged_decode_split(**decode_arguments(make([20])), num_splits=65)


def test_kv_write_refuses_what_does_not_fit():
    cache, new = torch.zeros(2, 16, 2, 32, device=DEVICE), torch.zeros(3, 2, 32, device=DEVICE)
    slots = torch.arange(3, device=DEVICE)
    for key, value, index, exception, message in [
        (new[:, :1], new, slots, ValueError, r"key must be \[tokens, 2, 32\]"),
        (new, new[:2], slots, ValueError, "got 3 keys and 2 values"),
        (new, new, slots[:2], ValueError, r"slot_mapping must have shape \[3\]"),
        (new, new, slots.float(), TypeError, "slot_mapping is torch.float32"),
        (new.half(), new, slots, TypeError, "key is torch.float16 and the cache torch.float32"),
    ]:
        with pytest.raises(exception, match=message):
            kv_write(key, value, cache, cache, index)


@interpreter_only
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_lens": lambda c: c + 100}, r"context_lens must be 0 to 64 .*got \[120, 140\]"),
        ({"block_tables": lambda t: t + 100}, "block_tables uses .*, the pool has 0 to"),
        (
            {"cu_seqlens_q": lambda c: c + 1},
            r"cu_seqlens_q must rise from 0 to 2, the number of queries, got \[1, 2, 3\]",
        ),
    ],
)
def test_bad_values_are_refused_where_looking_is_free(changes, message):
    with pytest.raises(ValueError, match=message):
        paged_attention(**replaced(**changes), max_query_len=1)


@interpreter_only
def test_more_bad_values():
    with pytest.raises(ValueError, match="max_query_len is 2, but a sequence has 3 new tokens"):
        attend_len(make([20, 40], [3, 1]), 2)
    cache, new = torch.zeros(2, 16, 2, 32), torch.zeros(1, 2, 32)
    for slot in (-2, 32):
        with pytest.raises(ValueError, match=re.escape("slots must be -1 (write nothing) to 31 in this pool")):
            kv_write(new, new, cache, cache, torch.tensor([slot]))
