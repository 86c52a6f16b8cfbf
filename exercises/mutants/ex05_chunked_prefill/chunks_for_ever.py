"""nothing is left for the prompt, so it is never read: raise ValueError

Fails: test_no_room_for_the_prompt
"""


def chunk_schedule(prompt, budget, streams):
    chunks = []
    while prompt > 0:
        chunks.append(min(max(0, budget - streams), prompt))
        prompt -= chunks[-1]
        chunks = chunks[-1000:]
    return chunks
