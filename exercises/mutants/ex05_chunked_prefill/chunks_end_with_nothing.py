"""you added an empty chunk when the prompt came out even

Fails: test_chunks_take_what_the_streams_leave, test_the_last_chunk_is_the_rest, test_a_short_prompt_takes_one_step,
    test_the_chunks_of_the_engine
"""

solution = chunk_schedule


def chunk_schedule(prompt, budget, streams):
    chunks = solution(prompt, budget, streams)
    return chunks if prompt % (budget - streams) else [*chunks, 0]
