"""you rounded down: half a block has to be a block

Fails: test_blocks_for_prompt_and_output, test_no_more_than_the_longest, test_blocks_are_spent_as_they_join,
    test_the_blocks_in_the_engine
"""


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining = {}
    for request in waiting:
        needed = min(request.num_prompt_tokens + request.params.max_tokens, max_model_len) // block_size
        if len(joining) == free_lanes or needed > free_blocks:
            return joining, "no lane" if len(joining) == free_lanes else f"needs {needed} blocks, {free_blocks} free"
        joining[request] = needed
        free_blocks -= needed
    return joining, None
