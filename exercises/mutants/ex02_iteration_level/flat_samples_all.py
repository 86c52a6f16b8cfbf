"""you sampled a request whose gap stays open: nothing follows from a part of a prompt

Fails: test_closed_gaps_are_sampled
"""

solution = flatten


def flatten(work):
    input_ids, positions, cu_seqlens, _ = solution(work)
    return input_ids, positions, cu_seqlens, [end - 1 for end in cu_seqlens[1:]]
