"""you gave the prompt the whole budget: each stream takes a token of it

Fails: test_chunks_take_what_the_streams_leave, test_the_last_chunk_is_the_rest, test_no_room_for_the_prompt,
    test_the_chunks_of_the_engine
"""

solution = chunk_schedule


def chunk_schedule(prompt, budget, streams):
    return solution(prompt, budget, 0)
