"""you counted positions through the whole row: they belong to each request

Fails: test_a_token_stands_at_its_own_position
"""

solution = flatten


def flatten(work):
    input_ids, _, cu_seqlens, last_rows = solution(work)
    return input_ids, list(range(len(input_ids))), cu_seqlens, last_rows
