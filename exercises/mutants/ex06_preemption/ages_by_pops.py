"""you aged at each pop: waiting counts in seconds

Fails: test_waiting_counts_in_seconds
"""


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.entries = aging_s, []

    def add(self, name, priority, now):
        self.entries.append([priority, len(self.entries), name])

    def pop(self, now):
        if not self.entries:
            return None
        first = min(self.entries)
        self.entries.remove(first)
        for entry in self.entries:
            entry[0] -= 3 / self.aging_s
        return first[2]
