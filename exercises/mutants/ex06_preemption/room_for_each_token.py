"""you took a block for each new token: take one when the last is full

Fails: test_there_is_room_already, test_the_victims_in_the_engine
"""

solution = make_room


def make_room(request, running, waiting, free_blocks, block_size):
    if free_blocks and request.block_table:
        request.block_table.append(free_blocks.pop())
    return solution(request, running, waiting, free_blocks, block_size)
