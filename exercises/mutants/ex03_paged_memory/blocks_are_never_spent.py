"""you compared each with what was free at first: those before it have taken some

Fails: test_blocks_are_spent_as_they_join, test_it_says_which_blocks_are_missing, test_the_blocks_in_the_engine
"""


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining = {}
    for request in waiting:
        needed = -(-min(request.num_prompt_tokens + request.params.max_tokens, max_model_len) // block_size)
        if len(joining) == free_lanes or needed > free_blocks:
            return joining, "no lane" if len(joining) == free_lanes else f"needs {needed} blocks, {free_blocks} free"
        joining[request] = needed
    return joining, None
