"""your positions are one too far: the token behind n computed ones stands at n

Fails: test_a_token_stands_at_its_own_position
"""

solution = flatten


def flatten(work):
    input_ids, positions, cu_seqlens, last_rows = solution(work)
    return input_ids, [position + 1 for position in positions], cu_seqlens, last_rows
