"""you did not say why: the reason is for the one who waits

Fails: test_it_says_which_blocks_are_missing, test_it_says_that_a_lane_is_missing
"""

solution = admit


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining, why = solution(waiting, free_lanes, free_blocks, block_size, max_model_len)
    return joining, why and "there is no room"
