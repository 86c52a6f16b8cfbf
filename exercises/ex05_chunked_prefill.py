"""Exercise 5: chunked prefill (8 points).

    minibatcher grade ex05              the board
    minibatcher grade 5.1 --hint        one more hint

A step that reads a long prompt takes long, and while it runs nobody else gets a token. So a prompt may be read in
chunks, and a *token budget* says how many tokens a step computes at most (Sarathi-Serve, OSDI'24).
"""

from __future__ import annotations


def split_budget(gaps: list[int], budget: int) -> list[int]:
    """Task 5.1 (3 points, 25 minutes; after 40 take a hint): split a step's budget, decodes first.

    Whoever waits for a single token comes first: it is a stream that somebody is reading. What is left goes to the
    prompts, in order: the first one gets as much as it can use, then the next one, until the budget is spent.

    gaps     for each running request, in order, how many tokens it has that are not computed: 1 is a decode, more is a
             prompt. The list is not changed.
    budget   tokens that this step may compute, 1 or more.

    Returns for each request how many of its tokens this step computes; 0 for those that get nothing. (If there are
    fewer tokens than decodes, the first ones get theirs.)

    >>> split_budget([1, 10, 1, 4], budget=8)
    [1, 6, 1, 0]
    """
    raise NotImplementedError("Task 5.1")


def chunk_schedule(prompt: int, budget: int, streams: int) -> list[int]:
    """Task 5.2 (2 points, 15 minutes; after 25 take a hint): the chunks of one prompt.

    While the prompt is read, `streams` other requests decode, one token each in every step, and they come first.

    Returns how many tokens of the prompt each step reads, until all are read. Raises ValueError when the streams leave
    nothing of the budget, since then the prompt would never be read.

    >>> chunk_schedule(prompt=20, budget=10, streams=2)
    [8, 8, 4]
    """
    raise NotImplementedError("Task 5.2")


def stall(chunks: list[int], streams: int, base_ms: float, token_ms: float, mixed: bool) -> tuple[float, float]:
    """Task 5.3 (3 points, 25 minutes; after 40 take a hint): what a new prompt costs, and whom.

    A step takes `base_ms`, plus `token_ms` for every token it computes. A stream gets a token at the end of each step
    that serves it. Now a prompt arrives, and `streams` requests (1 or more) are decoding.

    chunks   how many tokens of the prompt each step reads. One entry is the whole prompt at once.
    mixed    True: each of these steps also serves all streams (chunked prefill; with one entry, Orca).
             False: these steps read the prompt alone, one after the other, and only then the streams go on, in a step
             of their own ("prefill first", as vLLM's first engine did).

    Returns, in ms,
        the largest gap: the longest time that a stream waits for its next token, from the moment the prompt arrives
        the time to first token of the new request: until all of its prompt has been read

    >>> stall([100, 50], streams=2, base_ms=10, token_ms=1, mixed=True)        # steps of 112 and 62 ms
    (112, 174)
    >>> stall([100, 50], streams=2, base_ms=10, token_ms=1, mixed=False)       # 110 and 60 ms, and then one of 12
    (182, 170)
    """
    raise NotImplementedError("Task 5.3")
