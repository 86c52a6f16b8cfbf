"""Exercise 2 in another style: sums over prefixes, comprehensions, and texts for reasons."""

from __future__ import annotations

from itertools import accumulate, chain, takewhile


def who_joins(waiting, free_lanes, free_tokens):
    fitting = takewhile(lambda taken: taken <= free_tokens, accumulate(waiting))
    return range(min(free_lanes, len(list(fitting))))


def flatten(work):
    spans = [range(request.num_computed, request.num_computed + n) for request, n in work.items()]
    ids = [request.token_ids[p] for request, span in zip(work, spans, strict=True) for p in span]
    ends = list(accumulate(work.values()))
    closed = [request.gap == n for request, n in work.items()]
    last = [end - 1 for end, is_closed in zip(ends, closed, strict=True) if is_closed]
    return [ids, list(chain.from_iterable(spans)), [0, *ends], last]


def commit(work, sampled, eos):
    for request in work:
        request.num_computed = request.num_computed + work[request]
    for request, token in sampled.items():
        request.token_ids = [*request.token_ids, token]
        if len(request.token_ids) - len(request.prompt_token_ids) >= request.params.max_tokens:
            request.finish_reason = "length"
        if token == eos:
            request.finish_reason = "stop"
    return tuple(request for request in work if request.finish_reason is not None)
