"""The kernels' specification against two independent ways to say the same, and what must work without Triton."""

import math
import subprocess
import sys

import pytest
import torch

from minibatcher_kernels.problem import Problem, random_problem
from minibatcher_kernels.reference import paged_attention_reference

CONTEXTS, CHUNKS = [7, 20, 33, 16, 0], [7, 1, 5, 0, 0]


def rows_of(problem: Problem, seq: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A sequence's queries, keys and values as dense float64 tensors, gathered block by block."""
    first, end = problem.cu_seqlens_q[seq : seq + 2].tolist()
    context = int(problem.context_lens[seq])
    blocks = problem.block_tables[seq].tolist()
    keys, values = (
        torch.cat([cache[block] for block in blocks])[:context].double()
        for cache in (problem.key_cache, problem.value_cache)
    )
    return problem.query[first:end].double(), keys, values


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (2, 3), (3, 1)])
def test_equals_sdpa_with_an_explicit_mask(num_kv_heads, group, window):
    problem = random_problem(CONTEXTS, CHUNKS, num_kv_heads=num_kv_heads, group=group)
    expected = []
    for seq in range(len(CONTEXTS)):
        q, k, v = (rows.transpose(0, 1) for rows in rows_of(problem, seq))
        n, context = q.shape[1], k.shape[1]
        mask = torch.ones(n, context, dtype=torch.bool).tril(context - n)
        if window is not None:
            mask &= torch.ones_like(mask).triu(context - n - window + 1)
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=problem.scale, enable_gqa=True
        )
        expected.append(out.transpose(0, 1))
    torch.testing.assert_close(problem.answer(window), torch.cat(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (None, 1.5), (3, 1.5)])
def test_equals_the_definition_written_as_loops(window, softcap):
    problem = random_problem([5, 18], [2, 1], group=2, shared_blocks=1)
    answer = problem.answer(window, softcap)
    row = 0
    for seq in range(2):
        q, k, v = rows_of(problem, seq)
        for i in range(len(q)):
            position = len(k) - len(q) + i
            seen = [j for j in range(len(k)) if j <= position and (window is None or j > position - window)]
            for head in range(2):
                scores = [sum((q[i, head] * k[j, 0]).tolist()) * problem.scale for j in seen]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                weights = [math.exp(score) for score in scores]
                expected = sum(w * v[j, 0] for w, j in zip(weights, seen, strict=True)) / sum(weights)
                torch.testing.assert_close(answer[row, head], expected, rtol=1e-10, atol=1e-10)
            row += 1


def test_rows_that_see_nothing_are_0():
    """A padded row with context 0, and the rows of a chunk that is longer than its context."""
    problem = random_problem([0, 2], [2, 4])
    answer = problem.answer()
    assert (answer[:4] == 0).all() and (answer[4:] != 0).all()


def test_keeps_the_type_of_its_inputs():
    problem = random_problem([20], dtype=torch.bfloat16)
    assert paged_attention_reference(**vars(problem)).dtype == torch.bfloat16
    assert problem.answer().dtype == torch.float64


def test_a_problem_hides_nan_wherever_nobody_may_read():
    problem = random_problem([17, 40], num_kv_heads=2, shared_blocks=1)
    assert (problem.block_tables[:, 0] == problem.block_tables[0, 0]).all()
    assert problem.key_cache[problem.block_tables[0, -1]].isnan().all()
    assert problem.key_cache.isfinite().all(dim=(2, 3)).sum() == 17 + 40 - 16


def test_reference_and_problem_work_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from minibatcher_kernels.problem import random_problem\n"
        "print(random_problem([20]).answer().shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "torch.Size([1, 1, 32])", done.stderr
