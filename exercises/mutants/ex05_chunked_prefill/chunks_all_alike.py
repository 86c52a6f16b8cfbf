"""you made the last chunk as long as the others: it has what is left

Fails: test_the_last_chunk_is_the_rest, test_a_short_prompt_takes_one_step, test_the_chunks_of_the_engine
"""

solution = chunk_schedule


def chunk_schedule(prompt, budget, streams):
    return [budget - streams] * len(solution(prompt, budget, streams))
