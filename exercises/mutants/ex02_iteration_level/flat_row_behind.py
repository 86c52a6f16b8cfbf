"""your last rows are one too far: cu_seqlens[i + 1] is the next request's first row

Fails: test_closed_gaps_are_sampled
"""

solution = flatten


def flatten(work):
    input_ids, positions, cu_seqlens, last_rows = solution(work)
    return input_ids, positions, cu_seqlens, [row + 1 for row in last_rows]
