"""you let all behind the request give way: as soon as there is room, the others go on

Fails: test_no_more_victims_than_needed, test_the_victims_in_the_engine
"""


def make_room(request, running, waiting, free_blocks, block_size):
    need = -(-len(request.token_ids) // block_size) - len(request.block_table)
    if len(free_blocks) < need:
        behind = running[running.index(request) + 1 :] or [request]
        for victim in reversed(behind):
            running.remove(victim)
            free_blocks += victim.block_table
            victim.block_table, victim.num_computed = [], 0
            waiting.insert(0, victim)
        if request in behind:
            return False
    for _ in range(need):
        request.block_table.append(free_blocks.pop())
    return True
