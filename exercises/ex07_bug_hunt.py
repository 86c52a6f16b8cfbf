"""Exercise 7: bug hunt (6 points).

    minibatcher grade ex07              the board
    python exercises/ex07_bug_hunt.py   the three recorded traces
    minibatcher grade 7.1 --hint        one more hint

Three small engines with a bug each. Engines that people use had bugs of these kinds. Nothing crashes at once, and most
requests are served; what you have is a complaint, a trace of what happened, and the code.
"""

from __future__ import annotations

from pathlib import Path

from minibatcher import Request, Trace
from minibatcher.grading.toys import story


def broken_step(waiting: list[Request], running: list[Request], budget: int, max_num_seqs: int) -> dict[Request, int]:
    """Bug 1. "Request c was accepted, and nobody ever heard of it again."""
    work = {}
    for request in running:
        work[request] = 1
        budget -= 1
    while waiting and len(running) < max_num_seqs:
        request = waiting.pop(0)
        if request.gap > budget:
            break
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work


def repaired_step(waiting: list[Request], running: list[Request], budget: int, max_num_seqs: int) -> dict[Request, int]:
    """Task 7.1 (2 points, 20 minutes; after 30 take a hint): find bug 1, and repair it.

    Before each step this function decides who joins, and how many tokens each request computes. Prompts are read whole;
    the budget is 8 tokens a step, and there are 3 lanes. Copy `broken_step` here, and change as little as you can.

    waiting, running   in order of arrival. The function moves those that join from one to the other.
    budget             tokens that this step may compute; no prompt is longer. max_num_seqs: lanes.

    Returns how many tokens each of those that run computes.

    In the trace, c (prompt 7) arrives while a and b are decoding:

    >>> a, b, c = (Request([1] * n, request_id=name) for name, n in (("a", 4), ("b", 5), ("c", 7)))
    >>> a.num_computed, b.num_computed = 3, 4
    >>> waiting, running = [c], [a, b]
    >>> work = repaired_step(waiting, running, budget=8, max_num_seqs=3)
    >>> list(work.values()), waiting == [c], running == [a, b]
    ([1, 1], True, True)
    """
    raise NotImplementedError("Task 7.1")


def workload_for_bug_2() -> list[tuple[float, int, int]]:
    """Task 7.2 (2 points, 25 minutes; after 40 take a hint): write a workload that exposes bug 2.

    "From time to time everybody who is running ends with an error, all in the same step."

    The engine is the class Bug2 in exercises/tests/broken.py, a changed part of the class Right above it: 8 blocks of 4
    tokens, 3 lanes, blocks on demand. Find out what happens, and write the smallest workload you can on which the
    engine with the bug goes wrong. The right engine has to serve it well.

    Returns at most 6 requests, each (arrival in seconds, prompt tokens, output tokens); a step takes one second. A
    request needs prompt and output of 1 token or more, and together at most 32. An example of the form:

        return [(0, 3, 5), (2, 7, 1)]
    """
    raise NotImplementedError("Task 7.2")


def workload_for_bug_3() -> list[tuple[float, int, int]]:
    """Task 7.3 (2 points, 25 minutes; after 40 take a hint): write a workload that exposes bug 3.

    "When it is busy, some answers are nonsense from the middle on. When I ask again, they are fine."

    The engine is the class Bug3 in exercises/tests/broken.py. As in 7.2: at most 6 requests on which it goes wrong, and
    which the right engine serves well.
    """
    raise NotImplementedError("Task 7.3")


if __name__ == "__main__":
    for number in (1, 2, 3):
        trace = Trace.load(Path(__file__).parent / "traces" / f"ex07_bug{number}.jsonl")
        print(f"bug {number}\n\n{story(trace, number=3)}\n\n")
