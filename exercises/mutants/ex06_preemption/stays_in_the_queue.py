"""who was popped leaves the queue

Fails: test_the_more_important_goes_first, test_first_come_among_equals, test_nobody_waits_for_ever,
    test_everybody_ages, test_everyone_comes_out_once
"""

solution = AgingQueue


class AgingQueue(solution):
    def pop(self, now):
        return self.heap[0][2] if self.heap else None
