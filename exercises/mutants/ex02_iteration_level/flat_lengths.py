"""you gave the lengths: cumulative ones say where a request begins

Fails: test_lengths_are_cumulative
"""

solution = flatten


def flatten(work):
    input_ids, positions, _, last_rows = solution(work)
    return input_ids, positions, [0, *work.values()], last_rows
