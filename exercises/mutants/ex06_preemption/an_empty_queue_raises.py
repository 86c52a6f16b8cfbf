"""an empty queue gives None, and no error

Fails: test_everyone_comes_out_once
"""

solution = AgingQueue


class AgingQueue(solution):
    def pop(self, now):
        return heapq.heappop(self.heap)[2]
