"""you aged only the one that waits longest: all wait

Fails: test_nobody_waits_for_ever, test_everybody_ages, test_waiting_counts_in_seconds
"""


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.entries = aging_s, []

    def add(self, name, priority, now):
        self.entries.append((priority, now, name))

    def pop(self, now):
        if not self.entries:
            return None
        oldest = min(self.entries, key=lambda entry: entry[1])
        if now - oldest[1] > (oldest[0] + 8) * self.aging_s:
            self.entries.remove(oldest)
            return oldest[2]
        first = min(self.entries, key=lambda entry: entry[:2])
        self.entries.remove(first)
        return first[2]
