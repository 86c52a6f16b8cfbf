"""you looked at the blocks alone: each takes a lane too

Fails: test_it_says_that_a_lane_is_missing
"""

solution = admit


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    return solution(waiting, len(waiting), free_blocks, block_size, max_model_len)
