"""who joins takes the lowest lane that is free

Fails: test_the_lowest_free_lane_is_taken
"""


def schedule_by_hand():
    return ["AaaaDddFff", "Bb..Ee....", "..Ccccc..."]
