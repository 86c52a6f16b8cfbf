"""you let a smaller one overtake: the first that does not fit stops all behind it

Fails: test_blocks_are_spent_as_they_join, test_nobody_overtakes_for_blocks, test_the_blocks_in_the_engine
"""


def admit(waiting, free_lanes, free_blocks, block_size, max_model_len):
    joining, why = {}, None
    for request in waiting:
        needed = -(-min(request.num_prompt_tokens + request.params.max_tokens, max_model_len) // block_size)
        if len(joining) == free_lanes:
            return joining, why or "no lane is free"
        if needed > free_blocks:
            why = why or f"needs {needed} blocks, {free_blocks} free"
            continue
        joining[request] = needed
        free_blocks -= needed
    return joining, why
