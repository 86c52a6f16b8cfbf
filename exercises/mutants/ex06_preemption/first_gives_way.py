"""you let the first one give way: the one that came last loses the least

Fails: test_the_last_one_gives_way, test_what_the_victim_loses_and_keeps, test_the_victim_waits_first,
    test_no_more_victims_than_needed, test_several_victims_keep_their_order, test_the_request_itself_may_give_way,
    test_the_victims_in_the_engine
"""


def make_room(request, running, waiting, free_blocks, block_size):
    while len(request.block_table) * block_size < len(request.token_ids):
        if free_blocks:
            request.block_table.append(free_blocks.pop())
            continue
        victim = running.pop(0)
        free_blocks += victim.block_table
        victim.block_table, victim.num_computed = [], 0
        waiting.insert(0, victim)
        if victim is request:
            return False
    return True
