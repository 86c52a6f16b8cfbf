"""you kept one request for each key: those that are equal replace one another

Fails: test_first_come_among_equals, test_nobody_waits_for_ever, test_everybody_ages, test_everyone_comes_out_once
"""


class AgingQueue:
    def __init__(self, aging_s):
        self.aging_s, self.entries = aging_s, {}

    def add(self, name, priority, now):
        self.entries[priority + now / self.aging_s] = name

    def pop(self, now):
        return self.entries.pop(min(self.entries)) if self.entries else None
