"""Checks of exercise 1."""

from minibatcher.grading import exercise, expect, part
from minibatcher.grading.toys import RowRunner, answer, answers, engine, lanes, request
from minibatcher.schedulers.static import StaticScheduler


def prompts():
    return [[7, 8], [1, 2, 3, 4]]


@exercise("1.1", points=2, minutes=15)
class TestLeftPad:
    """Left-pad a batch, with positions"""

    def test_rows_end_with_their_prompt(self, ex):
        """a line is its padding, then its prompt, and as long as the longest prompt"""
        expect(part(ex.left_pad(prompts(), pad=9), 0, of=3), [[9, 9, 7, 8], [1, 2, 3, 4]])

    def test_mask_hides_the_padding(self, ex):
        """the mask is 0 where a line is padding, and 1 where its prompt is"""
        expect(part(ex.left_pad(prompts(), pad=9), 1, of=3), [[0, 0, 1, 1], [1, 1, 1, 1]])

    def test_positions_start_after_padding(self, ex):
        """a line that starts with padding begins at position 0 after it"""
        expect(part(ex.left_pad(prompts(), pad=9), 2, of=3), [[0, 0, 0, 1], [0, 1, 2, 3]])

    def test_a_prompt_may_contain_the_pad_token(self, ex):
        """a prompt's own token is not padding, even if it looks like it (many models pad with their end token)"""
        got = ex.left_pad([[9, 7, 9], [5], [9, 9, 9]], pad=9)
        masks = [[1, 1, 1], [0, 0, 1], [1, 1, 1]]
        positions = [[0, 1, 2], [0, 0, 0], [0, 1, 2]]
        expect([part(got, i, of=3) for i in (1, 2)], [masks, positions], "attention_mask and position_ids")

    def test_the_prompts_stay_as_they_were(self, ex):
        """the caller's prompts are not changed"""
        mine = prompts()
        ex.left_pad(mine, pad=9)
        expect(mine, prompts())


@exercise("1.2", points=3, minutes=25)
class TestStaticLoop:
    """The static loop, counting rows"""

    def test_the_first_step_reads_a_rectangle_of_prompts(self, ex):
        """in a batch's first step each line is as long as the longest prompt; what is not prompt is padding"""
        expect(ex.static_loop([(5, 1), (2, 1), (1, 1)], max_num_seqs=3), [(8, 7, 0)])

    def test_the_first_step_gives_the_first_token(self, ex):
        """a request that wants n tokens takes n steps: the step that reads its prompt gives the first"""
        expect(ex.static_loop([(3, 4)], max_num_seqs=1), [(3, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0)])

    def test_a_finished_row_is_computed_until_all_are_done(self, ex):
        """a request that has its tokens costs a row a step until the batch is over"""
        got = ex.static_loop([(2, 1), (2, 4), (2, 2)], max_num_seqs=3)
        expect(got, [(6, 0, 0), (2, 0, 1), (1, 0, 2), (1, 0, 2)])

    def test_nobody_joins_before_all_have_left(self, ex):
        """the next batch begins when the last request of this one is done, in order of arrival"""
        got = ex.static_loop([(2, 3), (3, 1), (9, 1), (4, 2)], max_num_seqs=2)
        expect(got, [(5, 1, 0), (1, 0, 1), (1, 0, 1), (13, 5, 0), (1, 0, 1)])

    def test_a_batch_may_be_smaller(self, ex):
        """places that nobody takes cost nothing: the rectangle has a line for each request of the batch"""
        expect(ex.static_loop([(3, 2), (1, 1), (2, 2)], max_num_seqs=2), [(4, 2, 0), (1, 0, 1), (2, 0, 0), (1, 0, 0)])

    def test_every_row_of_the_engine_is_counted(self, ex):
        """the package's own static scheduler, run on twelve requests, computes the rows that you count"""
        jobs = [(1 + 7 * n % 11, 1 + 5 * n % 13) for n in range(12)]
        records = engine(StaticScheduler(max_num_seqs=4)).run([request(str(n), *job) for n, job in enumerate(jobs)])
        rows = []
        for record in records:
            prompt = {work.id for work in record.work if work.kind == "prefill"}
            wasted = [(work.tokens, work.id in prompt) for work in record.work if work.kind == "wasted"]
            useful = sum(work.tokens for work in record.work if work.kind != "wasted")
            rows.append((useful, sum(n for n, pad in wasted if pad), sum(n for n, pad in wasted if not pad)))
        got = list(ex.static_loop(jobs, max_num_seqs=4))
        for step, row in enumerate(rows):
            expect(got[step : step + 1], [row], f"step {step}")
        expect(len(got), len(rows), "how many steps")


class PaddingRunner(RowRunner):
    """Reads a batch of prompts as the learner's function pads them; what the mask hides is not seen."""

    def __init__(self, clock, left_pad):
        super().__init__(clock)
        self.left_pad = left_pad

    def execute(self, plan):
        if not plan.admitted:
            return super().execute(plan)
        self.clock.time += 1
        rows = zip(plan.admitted, *self.left_pad([r.token_ids for r in plan.admitted], 0), strict=True)
        return {r: answer([(t, p) for t, m, p in zip(ids, mask, at, strict=True) if m]) for r, ids, mask, at in rows}


def picture(ex):
    """Both functions beside the real engine at stage 1."""
    jobs = [(3, 9), (5, 2), (1, 3), (4, 4), (2, 8), (6, 1), (2, 3)]
    served = engine(StaticScheduler(max_num_seqs=4))
    served.runner = PaddingRunner(served.clock, ex.left_pad)
    requests = [request("abcdefg"[n], *job) for n, job in enumerate(jobs)]
    trace = served.run(requests)
    right = all(r.output_token_ids == answers(r.prompt_token_ids, r.params.max_tokens) for r in requests)
    useful, padded, finished = (sum(column) for column in zip(*ex.static_loop(jobs, 4), strict=True))
    rows = [f"lane {lane}  {row}" for lane, row in enumerate(lanes(trace, 4))]
    share = (padded + finished) / (useful + padded + finished)
    return "\n".join(
        [
            "the engine at stage 1, with your padding (a capital reads its prompt, / is wasted):",
            "",
            *rows,
            "",
            f"every answer is {'right' if right else 'WRONG'}. Rows by your count: {useful} useful, {padded} padded, "
            f"{finished} finished;",
            f"{share:.0%} of the model's work is for nobody.",
        ]
    )
