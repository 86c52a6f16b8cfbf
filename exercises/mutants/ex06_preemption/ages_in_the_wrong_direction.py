"""you made those that wait less important

Fails: test_first_come_among_equals, test_nobody_waits_for_ever, test_everybody_ages, test_waiting_counts_in_seconds
"""

solution = AgingQueue


class AgingQueue(solution):
    def __init__(self, aging_s):
        super().__init__(-aging_s)
