"""you moved the requests on: the model has not run yet

Fails: test_the_requests_stay_as_they_were
"""

solution = flatten


def flatten(work):
    result = solution(work)
    for request, n in work.items():
        request.num_computed += n
    return result
