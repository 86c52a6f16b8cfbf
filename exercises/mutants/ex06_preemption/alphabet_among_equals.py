"""among equals you let the alphabet decide: the one that came first goes first

Fails: test_first_come_among_equals
"""

solution = AgingQueue


class AgingQueue(solution):
    def add(self, name, priority, now):
        heapq.heappush(self.heap, (priority + now / self.aging_s, name, name))
