"""you put the victim at the end of the queue: it came before all who wait there

Fails: test_the_victim_waits_first, test_several_victims_keep_their_order, test_the_victims_in_the_engine
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table
        victim.block_table, victim.num_computed = [], 0
        waiting.append(victim)
        if victim is request:
            return False
    return True
