"""a request waits for the lane of the one before it, though another is free

Fails: test_nobody_waits_without_need, test_the_lowest_free_lane_is_taken
"""


def schedule_by_hand():
    return ["AaaaDddFff", "BbCccccEe.", ".........."]
