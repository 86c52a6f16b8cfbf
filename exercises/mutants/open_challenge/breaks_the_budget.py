"""you gave out more than the budget

Fails: test_every_step_holds_the_rules
"""


class MyScheduler(PreemptiveScheduler):
    def schedule(self) -> Plan:
        plan = super().schedule()
        for request in plan.work:
            plan.work[request] = request.gap
        return plan
