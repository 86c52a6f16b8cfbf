"""a request cannot be there before it arrives

Fails: test_nobody_starts_before_it_arrives
"""


def schedule_by_hand():
    return ["AaaaDdd..", "BbCcccc..", "....EeFff"]
