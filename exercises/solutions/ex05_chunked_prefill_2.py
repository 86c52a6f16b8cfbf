"""Exercise 5 in another style: two passes, division with remainder, and a list of times."""

from __future__ import annotations

from itertools import accumulate, pairwise


def split_budget(gaps, budget):
    given = {}
    for wants_one in (True, False):
        for place, gap in enumerate(gaps):
            if (gap == 1) is wants_one and budget:
                given[place] = gap if gap <= budget else budget
                budget -= given[place]
    return tuple(given.get(place, 0) for place in range(len(gaps)))


def chunk_schedule(prompt, budget, streams):
    if budget <= streams:
        raise ValueError("no room")
    whole, rest = divmod(prompt, budget - streams)
    return [budget - streams] * whole + [rest] * bool(rest)


def stall(chunks, streams, base_ms, token_ms, mixed):
    with_streams = streams if mixed else 0
    ends = list(accumulate((base_ms + token_ms * (chunk + with_streams) for chunk in chunks), initial=0))
    first_token = ends[-1]
    served = ends if mixed else [0, first_token + base_ms + token_ms * streams]
    return max(later - earlier for earlier, later in pairwise(served)), first_token
