"""you let a smaller one overtake: the first that does not fit stops all behind it

Fails: test_the_pool_is_spent_as_they_join, test_nobody_passes_one_that_does_not_fit,
    test_the_six_requests_in_the_engine
"""


def who_joins(waiting, free_lanes, free_tokens):
    joining = []
    for place, tokens in enumerate(waiting):
        if len(joining) < free_lanes and tokens <= free_tokens:
            joining.append(place)
            free_tokens -= tokens
    return joining
