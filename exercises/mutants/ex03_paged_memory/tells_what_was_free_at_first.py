"""you named what was free at first: say what is left when its turn comes

Fails: test_it_says_which_blocks_are_missing
"""

import re

solution = admit


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining, why = solution(waiting, free_lanes, free_blocks, block_size, max_model_len)
    return joining, why and re.sub(r"\d+ free", f"{free_blocks} free", why)
