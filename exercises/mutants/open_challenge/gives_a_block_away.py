"""you gave back a block of somebody who is still running

Fails: test_every_step_holds_the_rules, test_everybody_gets_the_right_answer
"""


class MyScheduler(PreemptiveScheduler):
    def schedule(self) -> Plan:
        plan = super().schedule()
        if len(self.running) > 2:
            self.allocator.give_back(self.running[0].block_table[-1:])
        return plan
