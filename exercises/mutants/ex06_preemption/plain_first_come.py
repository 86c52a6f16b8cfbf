"""you made a plain queue: importance counts too

Fails: test_the_more_important_goes_first, test_an_important_newcomer_overtakes, test_waiting_counts_in_seconds
"""

solution = AgingQueue


class AgingQueue(solution):
    def add(self, name, priority, now):
        super().add(name, 0, now)
