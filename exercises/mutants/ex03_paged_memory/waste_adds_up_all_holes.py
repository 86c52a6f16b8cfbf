"""you added up all free blocks: only neighbours make a hole

Fails: test_scattered_room_is_lost, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    return solution(owners, lengths, block_size, needed)[0], 0
