"""d overtook c: while the first one does not fit, those behind it wait with it

Fails: test_nobody_overtakes
"""


def schedule_by_hand():
    return ["AaaaCcccc.", "Bb..Ee.Fff", ".Ddd......"]
