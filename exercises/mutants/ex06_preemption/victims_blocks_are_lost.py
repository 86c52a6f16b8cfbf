"""you took one of the victim's blocks, and lost the others

Fails: test_no_block_is_lost, test_the_victims_in_the_engine
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table[:1]
        victim.block_table, victim.num_computed = [], 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True
