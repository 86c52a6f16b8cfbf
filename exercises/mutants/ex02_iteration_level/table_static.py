"""you let nobody join before all have left: that is static batching

Fails: test_nobody_waits_without_need
"""


def schedule_by_hand():
    return ["AaaaCccccFff", "Bb..Ddd.....", "....Ee......"]
