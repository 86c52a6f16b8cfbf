"""the request gave way itself, and you gave it a block all the same

Fails: test_the_request_itself_may_give_way
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop()
        free_blocks += victim.block_table
        victim.block_table, victim.num_computed = [], 0
        waiting.insert(0, victim)
    return True
