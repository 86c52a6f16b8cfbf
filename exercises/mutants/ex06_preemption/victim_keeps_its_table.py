"""you freed the victim's blocks, and left them in its block table: two requests will write there

Fails: test_what_the_victim_loses_and_keeps, test_no_block_is_lost
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table
        victim.num_computed = 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True
