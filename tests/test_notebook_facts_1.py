"""What the prose of notebooks 00b to 03 states in numbers, computed: when a number changes, the sentence must too.

Each test is a notebook's section; the sentences are quoted, and looked for in the notebook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from oracle import greedy

from minibatcher import Request, SamplingParams
from minibatcher.measure.architectures import architecture
from minibatcher.measure.costs import CostModel, roofline
from minibatcher.measure.fit import WAYS, Length, how_many_fit
from minibatcher.measure.gpus import gpu
from minibatcher.measure.metrics import summary
from minibatcher.measure.policies import policies
from minibatcher.measure.simulator import build_fitted, build_simulated
from minibatcher.measure.workloads import lognormal
from minibatcher.model.plain import with_cache, without_cache
from minibatcher.trace import StepRecord, Trace
from minibatcher.views import steps
from minibatcher.views.states import owners
from minibatcher.views.steps import decodes

FOLDER = Path(__file__).parents[1] / "notebooks"


@pytest.fixture(scope="module")
def says():
    """says(notebook, sentence): fail unless a text of the notebook has it, however its lines are broken."""
    texts: dict[str, str] = {}

    def look(name: str, *sentences: str) -> None:
        if name not in texts:
            cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
            texts[name] = " ".join(" ".join(c.source for c in cells if c.cell_type == "markdown").split())
        for sentence in sentences:
            assert sentence in texts[name], f"{name} does not say {sentence!r}"

    return look


class TestKVCache:
    """00b"""

    model = architecture("llama-3.1-8b")
    costs = roofline(gpu("h100"), model)

    def test_bytes_of_a_token(self, says):
        m = self.model
        assert (m.layers, m.kv_heads, m.head_dim) == (32, 8, 128)
        says("00b_kv_cache", f"2 x 32 layers x 8 kv heads x 128 x 2 bytes = {2 * m.kv_values:,} bytes")
        assert 2 * m.kv_values == 128 * 1024
        says("00b_kv_cache", "128 KiB")
        says("00b_kv_cache", f"2 x 24 x 4 x 64 x 2 = {2 * 24 * 4 * 64 * 2:,} bytes")

    def test_tokens_that_fit(self, says):
        fit = (0.9 * 80e9 - 2 * self.model.weights) / (2 * self.model.kv_values)
        assert round(fit, -3) == 427_000 and int(fit // 2000) == 213
        says("00b_kv_cache", "about 427,000 tokens fit: 213 requests of 2,000 tokens", "427,000 tokens do")

    def test_a_step_of_one_request(self, says):
        one = self.costs.step(decodes(1, 500))
        assert f"{1000 * one['weights']:.2f}" == "4.48" and f"{1000 * one['compute']:.3f}" == "0.015"
        assert round(one["weights"] / one["compute"]) == 295
        says("00b_kv_cache", "takes 4.48 ms, and multiplying with them 0.015 ms, 295 times less")

    def test_the_formula(self, says):
        """As the notebook has it, for decodes: every token meets all weights but the input embedding."""
        weights, flops = self.model.layer_weights + self.model.output_weights, gpu("h100").peak("bfloat16")
        for batch in (1, 64, 512):
            step = self.costs.step(decodes(batch, 500))
            assert step["compute"] == pytest.approx(batch * 2 * weights / flops)
            assert step["weights"] == pytest.approx(2 * weights / gpu("h100").bandwidth)
            assert step["kv"] == pytest.approx(batch * 500 * 131_072 / gpu("h100").bandwidth)
            assert step["overhead"] == 1e-4
            parts = max(step["compute"], step["weights"]) + step["attention"] + step["kv"] + step["overhead"]
            assert step["seconds"] == pytest.approx(parts)
        says("00b_kv_cache", "tokens x 2 x weights / FLOP/s", "overhead = 0.1 ms")
        says("00b_kv_cache", "seconds = max(compute, weights) + attention + kv + overhead")

    def test_a_step_of_64(self, says):
        ratio = self.costs.step(decodes(64, 500))["seconds"] / self.costs.step(decodes(1, 500))["seconds"]
        assert f"{ratio:.2f}" == "1.27"
        says("00b_kv_cache", "takes 1.27 times as long as a step for one")
        short = self.costs.step(decodes(64, 40))["seconds"] / self.costs.step(decodes(1, 40))["seconds"]
        assert f"{short:.2f}" == "1.02"
        says("00b_kv_cache", "still flat at 64, where a step takes 1.02 times as long as for one request")

    def test_the_ridge(self, says):
        costs = self.costs
        assert round(costs.weights / (costs.token + costs.sample)) == 295
        says("00b_kv_cache", "FLOP/s to bytes/s: 295 on an H100, for any model")
        tokens = costs.weights / costs.kv
        assert [round(tokens / 500), round(tokens / 2000)] == [229, 57]
        says("00b_kv_cache", "at batch 229 already, and at 2,000 tokens at batch 57")
        assert self.model.pair_flops / (2 * self.model.kv_values) == 4
        says("00b_kv_cache", "four query heads to a kv head is what gives four FLOPs a byte")
        eight = roofline(gpu("h100"), self.model, dtype="float8")
        assert round(eight.weights / (eight.token + eight.sample)) == 295
        says("00b_kv_cache", "At the same one, 295.")
        assert 4 < 256 * 2000 * costs.kv / costs.weights < 5 and 256 * 2000 == 512_000
        says("00b_kv_cache", "the keys and values of 512,000 tokens take more than four times as long")

    def test_no_batch_of_500_tokens_reaches_the_ridge(self, says):
        def under_the_roof(batch: int) -> tuple[float, float]:
            """FLOPs a byte, and the share of the FLOP/s."""
            step = self.costs.step(decodes(batch, 500))
            return step["mfu"] * gpu("h100").peak("bfloat16") / (step["mbu"] * gpu("h100").bandwidth), step["mfu"]

        assert round(under_the_roof(64)[0]) == 51
        weights = self.model.layer_weights + self.model.output_weights
        most = (2 * weights + 500 * self.model.pair_flops) / (500 * 131_072)  # of any batch, however large
        assert round(most) == 233 and all(under_the_roof(1 << i)[0] < most for i in range(30))
        assert f"{under_the_roof(1 << 30)[1]:.0%}" == "44%" and all(
            under_the_roof(1 << i)[1] < 0.442 for i in range(30)
        )
        half = self.costs.step(decodes(512, 500))
        assert half["kv"] > half["seconds"] / 2
        says("00b_kv_cache", "Batch 64 stands at 51 FLOPs a byte", "Batch 512 lies below the roof: more than half")
        says("00b_kv_cache", "no batch gets beyond 233 FLOPs a byte, or 44% of the peak: the ridge at 295 is")

    def test_the_lab(self, says):
        small = roofline(gpu("l4"), self.model)
        assert round(small.weights / (small.token + small.sample)) == 403
        short, long = (1000 * self.costs.step(decodes(64, context))["seconds"] for context in (100, 2000))
        assert (f"{short:.2f}", f"{long:.2f}", round(long / short)) == ("4.83", "9.66", 2)
        room = 0.9 * gpu("h100").memory - 2 * self.model.weights
        assert room // (8000 * 2 * self.model.kv_values) == 53
        says("00b_kv_cache", "At a larger one, 403 against 295", "2,000: 9.66 ms against 4.83", "There is room for 53")


def requests(*lengths: tuple[int, int]) -> list[Request]:
    """Of (prompt tokens, output tokens) each."""
    return [
        Request([0] * prompt, SamplingParams(max_tokens=output), name)
        for name, (prompt, output) in zip("abcdefghijklmnopqrstuvwxyz", lengths, strict=False)
    ]


class TestStatic:
    """01"""

    @staticmethod
    def rows(trace: Trace) -> Counter[str]:
        found: Counter[str] = Counter()
        for record in trace:
            for work in record.work:
                wasted = "padded" if record.admitted else "finished"
                found[wasted if work.kind == "wasted" else "useful"] += work.tokens
        return found

    def lab(self, lanes: int, answer: int, prompt: int) -> Counter[str]:
        four = [(4, answer), (prompt, 4), (4, 4), (4, 4)]
        return self.rows(build_simulated("static", max_num_seqs=lanes, max_model_len=256).run(requests(*four * 4)))

    def test_an_end_frees_nothing(self, says):
        engine = build_simulated("static", max_num_seqs=3, max_model_len=64)
        trace = engine.run(requests((3, 3), (5, 12), (2, 6), (4, 4)))
        wasted = [record.step for record in trace for work in record.work if (work.id, work.kind) == ("a", "wasted")]
        assert wasted == [0, *range(3, 12)]  # padding, and then nine times
        assert [record.step for record in trace if "d" in record.admitted] == [12]
        says("01_static", "Request d waits until b is done, and the row of a is computed nine times more")

    def test_waiting_for_a_full_batch(self, says):
        found = []
        for wait in (0.0, 0.2):
            engine = build_simulated("static", max_num_seqs=8, max_model_len=256, max_wait_s=wait)
            params = SamplingParams(max_tokens=40)
            trace = engine.run(Request([0] * 20, params, str(i), arrival=0.05 * i) for i in range(16))
            found.append(summary(trace))
        idle = 1 - sum(record.t1 - record.t0 for record in trace) / found[-1].seconds
        assert f"{idle:.0%}" == "32%"
        says("01_static", "the device is idle for 32% of the time")
        first, second = found
        assert (first.steps, second.steps) == (240, 160)
        assert [round(1000 * s.ttft.p50) for s in found] == [88, 130]
        says("01_static", "a request every 50 ms, 40 tokens each", "160 steps do what took 240")
        says("01_static", "the median first token comes after 130 ms in place of 88")

    def test_the_lab(self, says):
        answer, prompt = self.lab(4, 40, 4), self.lab(4, 4, 40)
        assert (answer["padded"], answer["finished"]) == (0, 432)
        assert (prompt["padded"], prompt["finished"]) == (432, 0)
        assert f"{1 - answer['useful'] / answer.total():.0%}" == "63%"
        assert set(self.lab(1, 40, 40)) == {"useful"}
        wide = self.lab(8, 40, 4)
        assert (wide["finished"], wide.total()) == (answer["finished"], answer.total())
        says("01_static", "(1) 63%: 432 positions are those of finished requests", "With eight lanes 63% again")
        says(
            "01_static",
            "One lane wastes nothing",
            "a prompt of 40 among answers of four costs 432 positions of padding",
        )

    def test_what_is_computed_while_somebody_waits(self):
        """Of the lengths that the notebook's eight questions have: padding, where requests join, does not count."""
        engine = build_simulated("static", max_num_seqs=4, max_model_len=512)
        trace = engine.run(requests((42, 8), (44, 32), (37, 32), (42, 14), (60, 32), (40, 3), (38, 32), (80, 32)))
        lost = [r for r in trace if r.waiting and not r.admitted and any(w.kind == "wasted" for w in r.work)]
        assert [lost[0].step, lost[-1].step, len(lost)] == [8, 31, 24]
        assert sum(work.tokens for record in lost for work in record.work if work.kind == "wasted") == 24 + 18

    def test_the_first_question(self, says):
        rows = self.rows(build_simulated("static", max_num_seqs=8, max_model_len=256).run(
            requests((10, 100), *[(10, 5)] * 7)))  # fmt: skip
        assert rows.total() == 8 * (10 + 99) == 872 and rows["useful"] == 7 * (10 + 4) + 10 + 99 == 207 < 872 / 4
        says("01_static", "8 x (10 + 99) = 872 computed. Useful are 7 x (10 + 4) + 10 + 99 = 207, less than a quarter")


class TestIteration:
    """02"""

    six = (("a", 0, 3, 5), ("b", 0, 6, 2), ("c", 1, 2, 7), ("d", 1, 8, 4), ("e", 2, 1, 2), ("f", 5, 4, 3))

    @staticmethod
    def run(asked: Sequence[tuple[str, int, int, int]], lanes: int, pool: int) -> Trace:
        """asked: (name, arrival, prompt, output). A step takes a second, a block holds a token."""
        room = {"max_model_len": pool, "num_blocks": pool, "block_size": 1, "reserve": "max_tokens"}
        second = CostModel(token=0, sample=0, weights=0, pair=0, kv=0, overhead=1.0)
        engine = build_fitted("iteration", second, max_num_seqs=lanes, **room)
        return engine.run(Request([0] * p, SamplingParams(max_tokens=o), name, arrival=a) for name, a, p, o in asked)

    def test_not_every_arrival_starts_at_once(self, says):
        trace = self.run([("a", 0, 4, 6), ("b", 0, 2, 3), ("c", 0, 8, 4), ("d", 0, 1, 2)], 3, 24)
        assert trace[0].admitted == ["a", "b"] and trace[0].waiting.id == "c"
        assert "needs 12 blocks" in trace[0].waiting.why and "(9 free)" in trace[0].waiting.why
        says("02_iteration", "After a and b, 9 tokens of the pool are free and c needs 12, so c waits")

    def test_six_requests_by_hand(self, says):
        trace = self.run(self.six, 3, 20)
        begins = {id: record.step for record in trace for id in record.admitted}
        ends = {id: record.step for record in trace for id, _ in record.finished}
        assert begins["d"] == begins["e"] == 9 == ends["c"] + 1
        assert all(record.waiting.why == "needs 12 blocks in a row, the longest hole has 8 (11 free)"
                   for record in trace.records[5:9])  # fmt: skip
        assert all([work.id for work in record.work] == ["c"] for record in trace.records[5:9])
        says("02_iteration", "In step 9, when c has ended: d needs 12 tokens, and from step 5 on only 11 are free")
        says("02_iteration", "in steps 5 to 8 only one of them had work")
        says("02_iteration", "e, which wanted three tokens from step 2 on, begins with d")
        for name, arrival, prompt, output in self.six:
            says("02_iteration", f"| {name} | {arrival} | {prompt} | {output} |")

    def test_the_lab(self, says):
        steps = {(lanes, pool): len(self.run(self.six, lanes, pool)) for lanes in range(1, 7) for pool in range(12, 61)}
        assert {steps[lanes, 20] for lanes in range(2, 7)} == {14}
        assert steps[2, 40] == steps[2, 60] == 12
        least = min(steps.values())
        assert least == 8
        reached = [key for key, n in steps.items() if n == least]
        assert min(lanes for lanes, _ in reached) == 4 and min(pool for _, pool in reached) == 37
        assert (4, 37) in reached
        assert steps[1, 20] > steps[2, 20]
        says("02_iteration", "with a pool of 20 a third lane changes nothing, 14 steps with two, 14 with six")
        says("02_iteration", "with two lanes, 40 tokens are as good as 60, 12 steps")
        assert self.six[2][:2] == ("c", 1) and self.six[2][3] == 7 == least - 1
        says("02_iteration", "Eight steps are the least, because c arrives before step 1 and needs seven")
        says("02_iteration", "They take four lanes and 37 tokens")

    def test_twelve_questions_take_fewer_steps(self):
        """Of the lengths that the notebook asks for, if no answer ends early."""
        found = {}
        for stage in ("static", "iteration"):
            engine = build_simulated(stage, max_num_seqs=4, max_model_len=512)
            found[stage] = len(engine.run(requests(*[(30, output) for output in (24, 4, 8, 6) * 3])))
        assert found["iteration"] < 0.7 * found["static"]

    def test_the_pool_that_two_requests_fill(self, says):
        engine = build_simulated("iteration", max_num_seqs=4, max_model_len=512, num_blocks=64)
        trace = engine.run(requests(*[(2, 8)] * 4))
        assert [len(move.blocks) for move in trace[0].blocks] == [32, 32] and trace[0].kv["total"] == 1024
        assert (trace[0].waiting.id, trace[0].waiting.behind) == ("c", 1)
        says("02_iteration", "Here the pool has 1,024 tokens, `max_model_len` is 512, and four short requests come")
        assert max(prompt + 8 for prompt in (2, 8)) <= 16, "none writes into a second block"
        says(
            "02_iteration", "Two requests hold the whole pool, 32 blocks each, and each has written into its first one"
        )
        assert trace[7].kv["used"] + trace[7].kv["reserved"] + trace[7].kv["internal"] == 1024

    def test_the_first_question(self, says):
        assert 30 + 500 == 530 and 31 * 500 == 15_500
        says("02_iteration", "530 positions; the rectangle would have 31 x 500 = 15,500. Sampled is at 31")


class TestPaged:
    """03"""

    six = (("a", 0, 6, 10), ("b", 0, 5, 3), ("c", 0, 8, 12), ("d", 0, 3, 5), ("e", 1, 10, 14), ("f", 2, 9, 7))

    def run(self, way: str, size: int = 4, pool: int = 64) -> Trace:
        stage, rule = WAYS[way]
        second = CostModel(token=0, sample=0, weights=0, pair=0, kv=0, overhead=1.0)
        room = {"max_model_len": 32, "num_blocks": pool // size, "block_size": size}
        engine = build_fitted(stage, second, max_num_seqs=6, **room, **rule)
        params = SamplingParams(max_tokens=14)
        return engine.run(Request([0] * p, params, name, arrival=a, output_len=o) for name, a, p, o in self.six)

    def test_how_many_fit(self, says):
        fits = how_many_fit([Length(20, 64, 30)] * 40, max_model_len=256)
        most = {way: fit.most for way, fit in fits.items()}
        assert (most["ranges, max_model_len"], most["ranges, max_tokens"]) == (4, 10)
        assert (most["blocks, max_tokens"], most["blocks, on demand"]) == (10, 31)
        assert fits["blocks, on demand"].preemptions > 0
        assert 1 << (30 - 1).bit_length() == 32
        says("03_paged", "prompts of 20 tokens, `max_tokens` 64, and all of them will stop after 30", "32 for 30")
        says("03_paged", "a range for `max_model_len`, holds 4 of them. A range for `max_tokens` holds 10")
        says("03_paged", "they hold 10, no more than ranges do; taken on demand 31")

    def test_holes(self, says):
        trace = self.run("ranges, oracle")
        gone = {id for record in trace.records[:5] for id, _ in record.finished}
        assert gone == {"b", "d"} and trace[5].kv["external"] == 28
        assert trace[5].waiting.why == "needs 6 blocks in a row, the longest hole has 5 (7 free)"
        assert trace[5].waiting.id == "e" and "e" in trace[10].admitted
        assert ("a", "length") in trace[9].finished
        says(
            "03_paged",
            "In step 5, b and d have ended and left two holes. Request e waits for six blocks, and seven are",
        )
        says("03_paged", "It lasts until step 10, when a has left")

    def test_the_run_that_is_seen(self, says):
        """On the real model all six arrive at once."""
        second = CostModel(token=0, sample=0, weights=0, pair=0, kv=0, overhead=1.0)
        engine = build_fitted("paged", second, max_num_seqs=6, max_model_len=64, num_blocks=16, block_size=4)
        trace = engine.run(requests(*((prompt, output) for _, _, prompt, output in self.six)))
        assert "e" in trace[5].admitted
        table = owners(trace, 8)["e"].blocks
        assert len(table) == 6 and sum(b != a + 1 for a, b in pairwise(sorted(table))) == 1, "two places of the pool"
        assert table == [11, 12, 4, 5, 13, 14]
        says("03_paged", "begins at block 11, goes back to 4, and ends at 14")
        says("03_paged", "block 11 with its four tokens is slots 44 to 47")
        says("03_paged", "Request 4 begins in step 5, as soon as six blocks are free", "Its tokens lie in two places")

    def test_a_token_that_is_counted_and_not_written(self, says):
        second = CostModel(token=0, sample=0, weights=0, pair=0, kv=0, overhead=1.0)
        engine = build_fitted("preemptive", second, max_num_seqs=2, max_model_len=32, num_blocks=8, block_size=4)
        request = Request([0] * 4, SamplingParams(max_tokens=3))
        engine.add(request)
        for state in ((5, 4, 1), (6, 5, 2)):
            engine.step()
            assert (request.num_tokens, request.num_computed, len(request.block_table)) == state
        says("03_paged", "| the prompt (4 tokens), one token sampled | 5 | 4 | 1 |", "| one more step | 6 | 5 | 2 |")

    def test_two_halves(self, says):
        jobs = lognormal(0, 1000, n=48, prompt_median=60, output_median=60, max_prompt=400, max_output=400)
        costs = roofline(gpu("h100"), architecture("llama-3.1-8b"))
        found = {(p.scheduling, p.memory): p for p in policies(costs, jobs, num_blocks=256, max_model_len=1024)}
        speed = {pair: round(p.figures.output_tokens_per_s) for pair, p in found.items()}
        pairs = [speed[s, m] for s in ("static", "iteration") for m in ("ranges, max_tokens", "paged")]
        assert pairs == [494, 494, 1335, 1504]
        assert (round(1335 / 494, 1), round(1504 / 1335, 2)) == (2.7, 1.13)
        says("03_paged", "Forty-eight requests with log-normal lengths, a pool of 4,096 tokens")
        says("03_paged", "In a static batch paging brings nothing: 494 and 494", "brings 2.7 times as much")
        says("03_paged", "paging adds 13%: from 1,335 output tokens/s to 1,504")
        shares = {pair: p.shares for pair, p in found.items()}
        assert shares["static", "ranges, max_tokens"]["external"] < 0.02, "hardly any holes"
        assert shares["iteration", "ranges, max_tokens"]["external"] > 0.1
        assert shares["iteration", "paged"]["external"] == 0

        rules = [speed["iteration", m] for m in ("ranges, max", "ranges, pow2", "ranges, oracle", "paged, on demand")]
        assert rules == [834, 1614, 1692, 1976] and max(speed.values()) == 1976
        says("03_paged", "`max` gives 834", "`pow2` (1,614) and `oracle` (1,692)", "give the most, 1,976")
        most = {memory: p.figures.max_running for (s, memory), p in found.items() if s == "iteration"}
        assert (most["ranges, max_tokens"], most["paged"], most["paged, on demand"]) == (8, 9, 39)
        says("03_paged", "9 in place of 8")
        demand = shares["iteration", "paged, on demand"]
        assert round(1 - sum(demand.values()), 2) == 0.57 and len(jobs) == 48
        assert demand["reserved"] + demand["internal"] + demand["external"] < 0.03 < 0.3 < demand["used"]
        assert round(found["iteration", "paged, on demand"].figures.mean_running, 1) == 9.4
        says(
            "03_paged", "Why is the pool 57% empty then? On demand, 39 of the 48 requests run at once, but only 9.4 on"
        )

    def test_the_lab(self, says):
        external = {way: self.run(way)[5].kv["external"] for way in WAYS}
        assert {way for way, tokens in external.items() if tokens} == {"ranges, oracle"}
        assert external["ranges, oracle"] == 28
        says("03_paged", "in step 5 only `oracle` has external waste, 28 tokens")
        internal = [self.run("blocks, max_tokens", size)[5].kv["internal"] for size in (4, 1)]
        assert internal == [20, 15]
        says("03_paged", "Blocks for `max_tokens` have 20 internal, and 15 still with blocks of one token")
        demand = self.run("blocks, on demand")
        assert demand[5].kv["used"] == 50 and (len(demand), len(self.run("blocks, max_tokens"))) == (15, 24)
        says("03_paged", "On demand, 50 of 64 tokens are in use, and the run takes 15 steps in place of 24")

    def test_internal_waste_is_bounded_and_does_not_end(self, says):
        means = []
        for size in (1, 4, 16, 32):
            kvs = [(record.kv, len(record.work)) for record in self.run("blocks, on demand", size, pool=256)]
            empty = [(kv["reserved"] + kv["internal"]) / running for kv, running in kvs]
            assert max(empty) < size and not any(kv["external"] for kv, _ in kvs)
            means.append(sum(empty) / len(empty))
        assert means == sorted(means) and means[0] == 0 < means[1]
        says("03_paged", "The larger the block, the more of it lies empty; with blocks of one token, nothing")
        reserved = self.run("blocks, max_tokens")[5]
        assert (reserved.kv["internal"], len(reserved.work)) == (20, 3) and reserved.kv["internal"] > 3 * 4
        says("03_paged", "20 tokens in the lab, for three requests with blocks of four")

    def test_the_copy(self, says):
        step = roofline(gpu("h100"), architecture("llama-3.1-8b"), gathers=True).step(decodes(64, 500))
        assert f"{1000 * step['gather']:.2f} {1000 * step['seconds']:.2f}" == "2.50 8.35"
        assert step["gather"] == pytest.approx(2 * step["kv"])
        says("03_paged", "The copy costs 2.50 ms of a step of 8.35, twice as much as reading the keys and values once")

    def test_the_questions(self, says):
        assert [7, 2, 9][35 // 16] * 16 + 35 % 16 == 147
        says("03_paged", "35 // 16 = 2, so in block 9, at place 35 % 16 = 3: slot 9 x 16 + 3 = 147")
        assert divmod(47, 16) == (2, 15) and divmod(48, 16) == (3, 0)
        says("03_paged", "position 47 (the first position is 0), the last place of the third block")


class TestWhatTheyAreMadeFrom:
    """The package's parts that these notebooks brought with them."""

    @pytest.mark.parametrize("prompt", [[5], list(range(40))])
    def test_both_plain_loops_give_the_oracles_tokens(self, tiny, prompt):
        expected = greedy(tiny.model, prompt, 8)
        tokens, read = without_cache(tiny.model, prompt, 8)
        assert (tokens, read) == (expected, [len(prompt) + i for i in range(8)])
        tokens, read = with_cache(tiny.model, prompt, 8)
        assert (tokens, read) == (expected, [len(prompt)] + [1] * 7)

    def test_the_ragged_batch_as_a_picture(self):
        engine = build_simulated("iteration", max_num_seqs=4, max_model_len=128)
        engine.add_all(requests((5, 9), (3, 9)))
        engine.step()
        engine.add(Request([0] * 7, SamplingParams(max_tokens=2), "c"))
        record = engine.step()
        above, below = steps.ragged(record).axes
        assert above.get_title("left") == "padded: 3 requests x 7 = 21 positions, 12 of them empty"
        assert below.get_title("left") == "flat: 9 positions, none of them empty"
        assert below.get_xticks().tolist() == [0, 1, 2, 9]
        assert [line.get_xdata()[0] for line in below.get_lines() if len(line.get_xdata())] == [0.5, 1.5, 8.5]
        positions = [text.get_text() for text in below.texts if text.get_text().isdigit()]
        assert positions == ["3", "5", *map(str, range(7))], "those who decode come first, by context"

    def test_what_the_ragged_picture_refuses(self):
        static = build_simulated("static", max_num_seqs=2, max_model_len=64).run(requests((2, 2), (5, 2)))
        for record in (static[0], StepRecord()):
            with pytest.raises(ValueError, match=r"this step has \d+ tokens"):
                steps.ragged(record)
        long = build_simulated("iteration", max_num_seqs=2, max_model_len=128).run(requests((100, 2)))
        with pytest.raises(ValueError, match="100 tokens"):
            steps.ragged(long[0])

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_pictures_of_step_times(self, theme):
        costs = TestKVCache.costs
        (ax,) = steps.terms(costs, 500, 64, "x: ", theme).axes
        assert ax.get_title("left") == "x: batch 64, context 500: 5.85 ms a step, 1.27 times batch 1, 10,941 tokens/s"
        (ax,) = steps.roofline(gpu("h100"), "bfloat16", {"one": costs.step(decodes(1, 500))}, theme).axes
        (x,), (y,) = ax.get_lines()[-1].get_data()
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one"]
        flops = 2 * (TestKVCache.model.layer_weights + TestKVCache.model.output_weights) + 500 * 4 * 32 * 32 * 128
        moved = 2 * (TestKVCache.model.layer_weights + TestKVCache.model.output_weights) + 500 * 131_072
        assert (x, y) == pytest.approx((flops / moved, flops / costs.step(decodes(1, 500))["seconds"] / 1e12))
        (ax,) = steps.by_batch({"here": {1: 2.0, 2: 3.0, 4: 4.0}}, theme).axes
        assert ax.get_lines()[0].get_ydata().tolist() == [1.0, 1.5, 2.0]
