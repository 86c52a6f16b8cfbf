"""you let one give way and stopped: it may have had too few blocks

Fails: test_several_victims_keep_their_order
"""


def make_room(request, running, waiting, free_blocks, block_size):
    if len(request.block_table) * block_size < len(request.token_ids) and not free_blocks:
        victim = running.pop()
        free_blocks += victim.block_table
        victim.block_table, victim.num_computed = [], 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    while len(request.block_table) * block_size < len(request.token_ids) and free_blocks:
        request.block_table.append(free_blocks.pop())
    return True
