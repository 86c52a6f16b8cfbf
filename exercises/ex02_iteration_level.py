"""Exercise 2: iteration-level scheduling (9 points).

    minibatcher grade ex02              the board
    minibatcher grade 2.1 --hint        one more hint

After every step of the model, whoever is done leaves and whoever waits may join (Orca, OSDI'22). A request that runs
has a *lane*, which is a place in the batch, and room in the *pool*, which is the memory for the keys and values of all.
Its *gap* is how many of its tokens have no keys and values yet: at first the whole prompt, later the one token that was
just named. A step that closes the gap gives it a new token. Tasks 2.2 to 2.4 are the three parts of such an engine's
step, and they end up in the real one.

What you need of `minibatcher.Request` here:

    request.token_ids           its tokens, prompt and output so far: a list of numbers
    request.num_computed        how many of them have their keys and values in the pool
    request.output_token_ids    the output alone (read only: a copy, cut from token_ids; appending to it does nothing)
    request.params.max_tokens   how many output tokens it wants at most
    request.finish_reason       None, "stop" or "length"
"""

from __future__ import annotations

from minibatcher import Request


def schedule_by_hand() -> list[str]:
    """Task 2.1 (2 points, 20 minutes; after 30 take a hint): schedule six requests by hand.

    Three lanes, and a pool that holds 20 tokens. Take paper: the columns are the steps.

        request   arrives before step   prompt   output   its place in the pool
           a              0                4        4        8
           b              0                2        2        4
           c              0                5        5       10
           d              1                2        3        5
           e              3                3        2        5
           f              7                1        3        4

    Before each step:
      1. Who got its last token in the step before has left: its lane and its place are free.
      2. Those that wait are looked at in the order of the alphabet. The first one joins if a lane is free and its whole
         place, prompt + output, fits in the pool; then the next one is looked at. If it does not fit, *nobody behind
         it joins either*: nobody overtakes.
      3. Who joins takes the lowest free lane.
    In the step in which it joins, a request reads its whole prompt and gets its first token. In each step after that it
    gets one more. So it keeps its lane for as many steps as it wants output tokens.

    Return the three lanes, a character a step: a capital in the step that reads the prompt, then small letters, and "."
    while the lane is idle. With two requests, a and b, both there from the start, that want 3 and 1 tokens, and room
    for both, it would be

        return ["Aaa", "B..", "..."]
    """
    raise NotImplementedError("Task 2.1")


def who_joins(waiting: list[int], free_lanes: int, free_tokens: int) -> list[int]:
    """Task 2.2 (2 points, 15 minutes; after 25 take a hint): who joins this step?

    First come, first served: as many from the front of the queue as there is room for. Nobody overtakes: the first one
    that does not fit stops all behind it, even those that would fit.

    waiting   for each request that waits, how many tokens of the pool it takes; in order of arrival.
    free_lanes, free_tokens   what is free now. A request takes one lane.

    Returns the places in `waiting` of those who join.

    >>> who_joins([8, 4, 10, 5], free_lanes=3, free_tokens=20)
    [0, 1]
    """
    raise NotImplementedError("Task 2.2")


def flatten(work: dict[Request, int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Task 2.3 (3 points, 25 minutes; after 40 take a hint): flatten a ragged batch.

    The model takes one long row of tokens without padding; so write the requests' tokens one behind the other, and note
    where each one begins. A request brings the next n of its tokens that are not computed yet.

    work   for each request, in order, how many tokens of it this step computes: 1 or more, and at most as many as are
           left (its gap, `len(token_ids) - num_computed`). The requests are not changed.

    Returns four lists:
        input_ids    the tokens of all requests, one request behind the other
        positions    where each of them stands in its own request, from 0
        cu_seqlens   cumulative lengths: request i has the rows from cu_seqlens[i] up to, but not including,
                     cu_seqlens[i + 1]; so it starts with 0, ends with the number of rows, and has one entry more than
                     there are requests
        last_rows    the rows whose outcome is the next token of a request: the last row of each request whose gap is
                     closed by this step. If a part of its gap stays open, nothing follows from it yet.

    A new request with a prompt of 3 tokens, beside one whose last token alone is not computed yet:

    >>> a, b = Request([11, 12, 13], request_id="a"), Request([21, 22, 23, 24], request_id="b")
    >>> b.num_computed = 3
    >>> flatten({a: 3, b: 1})
    ([11, 12, 13, 24], [0, 1, 2, 3], [0, 3, 4], [2, 3])
    """
    raise NotImplementedError("Task 2.3")


def commit(work: dict[Request, int], sampled: dict[Request, int], eos: int) -> list[Request]:
    """Task 2.4 (2 points, 20 minutes; after 30 take a hint): after the model has run, move the requests on.

    The tokens of `work` are computed now. Where that closes a request's gap, the request grows by its new token: from
    here on the new token is *counted* (it is in token_ids), but it is not *computed*, so the gap is 1 again.

    work      as in 2.3: how many tokens of each request were computed in this step.
    sampled   the new token of each request whose gap was closed; the others have none.
    eos       the end token. A request that gets it is finished with "stop", and keeps it in token_ids. One that has
              max_tokens output tokens is finished with "length". If both hold it is "stop".

    Changes the requests (token_ids, num_computed, finish_reason). Returns those that finished in this step.

    >>> a = Request([11, 12, 13], request_id="a")
    >>> commit({a: 3}, {a: 40}, eos=2)
    []
    >>> a.token_ids, a.num_computed
    ([11, 12, 13, 40], 3)
    """
    raise NotImplementedError("Task 2.4")
