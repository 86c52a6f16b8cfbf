"""you counted tokens as computed that are not: whoever comes back computes all of them again

Fails: test_everybody_gets_the_right_answer
"""


class MyScheduler(PreemptiveScheduler):
    def schedule(self) -> Plan:
        plan = super().schedule()
        for request in plan.resumed:
            request.num_computed = request.num_tokens - 1
            plan.work[request] = 1
        return plan
