"""the victim's keys and values are gone, and you count them as computed

Fails: test_what_the_victim_loses_and_keeps, test_the_victims_in_the_engine
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table
        victim.block_table = []
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True
