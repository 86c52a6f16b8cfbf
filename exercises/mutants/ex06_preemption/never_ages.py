"""waiting does not count in your queue: an unimportant one waits for ever

Fails: test_nobody_waits_for_ever, test_everybody_ages, test_waiting_counts_in_seconds
"""

solution = AgingQueue


class AgingQueue(solution):
    def __init__(self, aging_s):
        super().__init__(1e30)
