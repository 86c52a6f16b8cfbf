"""you made equal parts: each step takes as much as it can

Fails: test_the_last_chunk_is_the_rest, test_the_chunks_of_the_engine
"""

solution = chunk_schedule


def chunk_schedule(prompt, budget, streams):
    n = len(solution(prompt, budget, streams))
    return [prompt // n + (i < prompt % n) for i in range(n)]
