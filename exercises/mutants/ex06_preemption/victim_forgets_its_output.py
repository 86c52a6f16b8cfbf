"""you took the victim's output away: its tokens are known, only their keys are lost

Fails: test_what_the_victim_loses_and_keeps, test_the_victims_in_the_engine
"""

solution = make_room


def make_room(request, running, waiting, free_blocks, block_size):
    before = list(running)
    result = solution(request, running, waiting, free_blocks, block_size)
    for victim in before:
        if victim not in running:
            victim.token_ids = list(victim.prompt_token_ids)
    return result
