"""among equals the first one goes first, and yours is the last

Fails: test_first_come_among_equals
"""


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.heap, self.number = aging_s, [], count()

    def add(self, name, priority, now):
        heapq.heappush(self.heap, (priority + now / self.aging_s, -next(self.number), name))

    def pop(self, now):
        return heapq.heappop(self.heap)[2] if self.heap else None
