"""f arrives late, and wants to be served too

Fails: test_everyone_gets_its_tokens
"""


def schedule_by_hand():
    return ["AaaaDdd", "BbCcccc", "....Ee."]
