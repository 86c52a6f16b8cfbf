"""you counted everyone's waiting from the first one's arrival: each waits from its own

Fails: test_nobody_waits_for_ever, test_everybody_ages, test_waiting_counts_in_seconds
"""


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.entries, self.number = aging_s, [], count()

    def add(self, name, priority, now):
        self.entries.append((priority, next(self.number), name))

    def pop(self, now):
        if not self.entries:
            return None
        first = min((priority - now / self.aging_s, number, name) for priority, number, name in self.entries)
        self.entries = [entry for entry in self.entries if entry[1] != first[1]]
        return first[2]
