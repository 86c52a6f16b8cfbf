"""you looked at the lanes alone: the pool is full as well

Fails: test_the_pool_is_never_overfull
"""


def schedule_by_hand():
    return ["AaaaEe.Fff", "BbDdd.....", "Ccccc....."]
