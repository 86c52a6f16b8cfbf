"""you compared each with what was free at first: those before it have taken some

Fails: test_the_pool_is_spent_as_they_join, test_the_six_requests_in_the_engine
"""


def who_joins(waiting, free_lanes, free_tokens):
    joining = []
    for place, tokens in enumerate(waiting[:free_lanes]):
        if tokens > free_tokens:
            break
        joining.append(place)
    return joining
