"""you reserved beyond max_model_len: a request is cut off there

Fails: test_no_more_than_the_longest
"""

solution = admit


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    return solution(waiting, free_lanes, free_blocks, block_size, 10**9)
