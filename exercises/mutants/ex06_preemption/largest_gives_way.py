"""you let the one with the most blocks give way: the one that came last does

Fails: test_several_victims_keep_their_order
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = max(reversed(running), key=lambda one: len(one.block_table))
        running.remove(victim)
        free_blocks += victim.block_table
        victim.block_table, victim.num_computed = [], 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True
