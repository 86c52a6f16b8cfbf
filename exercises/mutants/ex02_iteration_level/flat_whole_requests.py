"""you took all tokens of a request: those that are computed need no second time

Fails: test_tokens_follow_one_another, test_a_token_stands_at_its_own_position, test_lengths_are_cumulative,
    test_closed_gaps_are_sampled
"""


def flatten(work):
    input_ids, positions, cu_seqlens, last_rows = [], [], [0], []
    for request in work:
        input_ids += request.token_ids
        positions += range(len(request.token_ids))
        cu_seqlens.append(len(input_ids))
        last_rows.append(len(input_ids) - 1)
    return input_ids, positions, cu_seqlens, last_rows
