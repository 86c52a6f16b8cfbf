"""who has its last token leaves at once: its lane is free in the next step

Fails: test_nobody_waits_without_need, test_the_lowest_free_lane_is_taken
"""


def schedule_by_hand():
    return ["Aaaa.Ddd...", "Bb.Ccccc...", ".....Ee.Fff"]
