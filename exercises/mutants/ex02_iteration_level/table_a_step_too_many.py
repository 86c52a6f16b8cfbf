"""the step that reads the prompt gives the first token already

Fails: test_everyone_gets_its_tokens
"""


def schedule_by_hand():
    return ["AaaaaDddd...", "BbbCccccc...", ".....EeeFfff"]
