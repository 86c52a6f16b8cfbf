"""cu_seqlens begins with 0, where the first request begins

Fails: test_lengths_are_cumulative, test_an_empty_step
"""

solution = flatten


def flatten(work):
    input_ids, positions, cu_seqlens, last_rows = solution(work)
    return input_ids, positions, cu_seqlens[1:], last_rows
