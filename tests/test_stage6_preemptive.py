"""Stage 6: blocks on demand; who gives way, for what, how, and how it comes back."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import real
from architectures import build, prompt
from oracle import check_greedy
from stub import Forced, check_invariants, check_plan, check_trace, drain, engine, replay, request

from minibatcher import Request, SamplingParams, Trace
from minibatcher.measure.metrics import requests as metrics_of
from minibatcher.trace import Preemption, Waiting

MODES = ("recompute", "swap")
BOTH_MODES = pytest.mark.parametrize("mode", MODES)


def preemptive(**settings):
    """Blocks of 2 tokens, and no block to spare; each plan is checked."""
    small = {"block_size": 2, "watermark": 0.0, "max_num_batched_tokens": 16, "max_model_len": 20, "num_blocks": 20}
    eng = engine("preemptive", **(small | settings))
    eng.runner.before = lambda plan: check_plan(eng.scheduler, plan)
    return eng


def serve(eng, served):
    """Serve them to the end. Returns the records; the invariants held, and the trace is one consistent story."""
    eng.add_all(served)
    drain(eng, served)
    check_trace(eng.trace.records, served)
    return eng.trace.records


def work_of(record):
    return [(work.id, work.kind, work.tokens) for work in record.work]


# -- blocks on demand -------------------------------------------------------------------------------------------------


def test_a_block_is_taken_when_its_first_token_comes():
    eng = preemptive()
    records = serve(eng, [request("a", prompt=3, max_tokens=6)])
    assert [[(move.move, move.blocks) for move in record.blocks] for record in records] == [
        [("take", [0, 1])],  # the whole prompt, at admission
        [],
        [("take", [2])],
        [],
        [("take", [3])],
        [("free", [0, 1, 2, 3])],
    ]
    assert [record.kv["reserved"] for record in records] == [1, 0, 1, 0, 1, 0], "at most what is left of its last block"


def test_more_requests_run_at_once_than_with_reservation():
    """24 that asked for 192 tokens and end after 24: reserved in full, four fit in the pool; here they all begin."""
    pool = {"num_blocks": 64, "block_size": 16, "max_model_len": 256, "max_num_seqs": 24}

    def run(stage):
        eng = engine(stage, **pool)
        eng.runner.token = lambda made: 1 if len(made.output_token_ids) == 23 else 10
        records = serve(eng, [request(f"r{i}", prompt=32, max_tokens=192) for i in range(24)])
        return len(records), max(len(record.emitted) for record in records), sum(len(r.preempted) for r in records)

    reserved, on_demand = run("chunked"), run("preemptive")
    assert reserved[1:] == (4, 0)
    assert on_demand[1] >= 20 and on_demand[2] > 0
    assert reserved[0] > 2 * on_demand[0], "steps"


def test_a_prompt_takes_all_its_blocks_at_admission_though_it_comes_in_chunks():
    """With blocks for the first chunk only, two long prompts would evict each other."""
    eng = preemptive(max_num_batched_tokens=4, num_blocks=10)
    records = serve(eng, [request("a", 12, 1), request("b", 12, 1)])
    assert records[0].waiting == Waiting("b", "the step's budget of 4 tokens is spent", 0)
    assert [len(move.blocks) for record in records for move in record.blocks] == [6, 6, 6, 6]
    assert not any(record.preempted for record in records)


# -- a decode needs a block -------------------------------------------------------------------------------------------


def test_recompute_by_hand():
    """Five blocks. In step 2 both need a third one: `b`, the last, gives way, and comes back when `a` has ended."""
    eng = preemptive(num_blocks=5, max_model_len=10)
    records = serve(eng, [request("a", prompt=3, max_tokens=6), request("b", 3, 4), request("c", 1, 2)])
    assert [work_of(record) for record in records] == [
        [("a", "prefill", 3), ("b", "prefill", 3), ("c", "prefill", 1)],
        [("a", "decode", 1), ("b", "decode", 1), ("c", "decode", 1)],
        [("a", "decode", 1)],
        [("a", "decode", 1)],
        [("a", "decode", 1)],
        [("a", "decode", 1)],
        [("b", "decode", 1), ("b", "recompute", 4)],  # 4 tokens again, and the one that was never computed
        [("b", "decode", 1)],
    ]
    why = "request 'b' needs a block, 0 free"
    assert records[2].preempted == [Preemption("b", "recompute", "memory", tokens=4, blocks=0, why=why)]
    assert [record.waiting for record in records[2:6]] == [
        Waiting("b", "it gave way in this step", 0),
        Waiting("b", "needs 3 blocks, 2 free", 0),
        Waiting("b", "needs 3 blocks, 1 free", 0),
        Waiting("b", "needs 3 blocks, 1 free", 0),
    ]
    assert [record.step for record in records if record.resumed] == [6] and records[6].resumed == ["b"]
    assert [record.kv["used"] for record in records] == [7, 10, 5, 6, 7, 8, 5, 6]


def test_swap_by_hand():
    """The same with copies: two blocks go to the CPU, and nothing is computed twice."""
    eng = preemptive(num_blocks=5, max_model_len=10, preemption="swap")
    copies = {}

    def note(plan):
        check_plan(eng.scheduler, plan)
        for name in ("swap_out", "swap_in"):
            for swap in getattr(plan, name):
                copies[name] = (len(eng.runner.plans) - 1, swap.request.request_id, swap.source, swap.target)

    eng.runner.before = note
    records = serve(eng, [request("a", prompt=3, max_tokens=6), request("b", 3, 4), request("c", 1, 2)])
    assert records[2].preempted == [
        Preemption("b", "swap", "memory", tokens=0, blocks=2, why="request 'b' needs a block, 0 free")
    ]
    assert work_of(records[6]) == [("b", "decode", 1)] and records[6].resumed == ["b"]
    assert copies == {"swap_out": (2, "b", [2, 3], [0, 1]), "swap_in": (6, "b", [0, 1], [0, 1])}
    assert [m.blocks for m in records[6].blocks] == [[0, 1, 4]], "a third one, for the token that is computed now"
    assert eng.scheduler.cpu.free == 5


@pytest.mark.parametrize(("cpu", "modes"), [(0, "rr"), (1, "rr"), (2, "sr"), (4, "sr"), (5, "ss"), (None, "ss")])
def test_a_full_cpu_pool_falls_back_to_recompute(cpu, modes):
    """`c` gives way with two blocks written, then `b` with three."""
    eng = preemptive(num_blocks=6, max_model_len=12, preemption="swap", num_cpu_blocks=cpu)
    records = serve(eng, [request("a", 3, 9), request("b", 3, 6), request("c", 3, 6)])
    first_two = [gone for record in records for gone in record.preempted][:2]
    assert [(gone.id, gone.mode[0]) for gone in first_two] == list(zip("cb", modes, strict=True))
    for gone, tokens, blocks in zip(first_two, (4, 6), (2, 3), strict=True):
        assert (gone.tokens, gone.blocks) == ((0, blocks) if gone.mode == "swap" else (tokens, 0))


@BOTH_MODES
def test_the_victim_is_the_last_and_may_be_the_one_that_asks(mode):
    eng = preemptive(num_blocks=4, max_model_len=8, preemption=mode)
    records = serve(eng, [request("a", prompt=4, max_tokens=3), request("b", 3, 3), request("c", 1, 1)])
    assert records[0].waiting == Waiting("c", "needs 1 blocks, 0 free", 0)
    assert [gone.id for gone in records[1].preempted] == ["b"]  # for `a`
    eng = preemptive(num_blocks=4, max_model_len=8, preemption=mode)
    records = serve(eng, [request("a", prompt=3, max_tokens=3), request("b", 4, 3)])
    assert [gone.id for gone in records[1].preempted] == ["b"]  # itself: those before it need nothing
    assert work_of(records[1]) == [("a", "decode", 1)]


@BOTH_MODES
def test_a_victim_may_be_in_the_middle_of_its_prompt(mode):
    eng = preemptive(num_blocks=7, max_model_len=14, preemption=mode, max_num_batched_tokens=4)
    records = serve(eng, [request("a", prompt=3, max_tokens=6), request("b", prompt=9, max_tokens=2)])
    (gone,) = [gone for record in records for gone in record.preempted]
    assert gone.id == "b" and gone.cause == "memory"
    kinds = [(w.kind, w.tokens) for record in records for w in record.work if w.id == "b"]
    assert kinds[:2] == [("prefill", 1), ("prefill", 3)]
    if mode == "recompute":
        assert gone.tokens == 4
        assert kinds[2:] == [("recompute", 4), ("prefill", 4), ("prefill", 1), ("decode", 1)]
    else:
        assert gone.blocks == 2
        assert kinds[2:] == [("prefill", 4), ("prefill", 1), ("decode", 1)]


def test_what_is_lost_again_before_it_was_made_good_is_computed_again_as_often():
    """`b` has 8 tokens, loses them, has 3 of them again, loses those: 3 + 8 tokens are recomputed, and 2 are new."""
    eng = preemptive(max_num_batched_tokens=4, scheduler=Forced)
    eng.runner.before = lambda plan: None
    at = [8, 3]
    eng.scheduler.force = lambda made: made.request_id == "b" and made.num_computed in at[:1] and at.pop(0) > 0
    records = serve(eng, [request("a", 1, 14), request("b", 8, 3)])
    assert [gone.tokens for record in records for gone in record.preempted] == [8, 3]
    kinds = [(w.kind, w.tokens) for record in records for w in record.work if w.id == "b"]
    assert kinds[:3] == [("prefill", 3), ("prefill", 3), ("prefill", 2)]
    assert kinds[3:6] == [("recompute", 3), ("recompute", 3), ("recompute", 3)]
    assert kinds[6:] == [("decode", 1), ("recompute", 2), ("decode", 1)]  # the first two are one chunk


def test_admission_is_closed_in_a_step_that_took_a_place_for_a_decode():
    """Else the victim's blocks would go to a newcomer, and the next decode would need a victim again."""
    eng = preemptive(num_blocks=4, max_model_len=8, policy="priority")
    eng.add_all([request("a", 4, 3), request("b", 3, 3)])
    eng.step()
    eng.add(request("small", 1, 1, priority=-1))
    eng.scheduler.may_give_way = dict  # here nobody makes way for it
    record = eng.step()
    assert [gone.id for gone in record.preempted] == ["b"] and eng.scheduler.allocator.free == 1
    assert record.waiting == Waiting("small", "a running request just gave way for want of memory", 1)


@BOTH_MODES
def test_who_gave_way_keeps_its_place_before_those_who_came_later(mode):
    eng = preemptive(num_blocks=5, max_model_len=10, max_num_seqs=4, preemption=mode)
    records = serve(eng, [request("a", 4, 4), request("b", 4, 4), request("c", 1, 1), request("d", 1, 1)])
    assert [gone.id for record in records for gone in record.preempted] == ["b"]
    assert (records[4].resumed, records[4].admitted) == (["b"], ["d"]), "`d` would have fitted in before"
    assert [work.id for work in records[4].work] == (["b", "b", "d"] if mode == "recompute" else ["b", "d"])


# -- the watermark ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "blocks", "spare"),
    [(0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (0.0, 50, 0), (0.1, 64, 7), (0.5, 3, 2)],
)
def test_the_watermark_is_rounded_up(share, blocks, spare):
    eng = preemptive(num_blocks=blocks, max_model_len=2, watermark=share)
    assert eng.scheduler.watermark_blocks == spare


def test_the_watermark_is_left_free_by_an_admission_while_something_runs():
    eng = preemptive(num_blocks=10, watermark=0.2, max_num_batched_tokens=64)
    eng.add_all([request("a", prompt=8, max_tokens=2), request("b", 8, 2), request("c", prompt=1, max_tokens=2)])
    assert eng.step().waiting == Waiting("c", "needs 1 blocks and 2 to spare, 2 free", 0)
    eng = preemptive(num_blocks=10, watermark=0.2, max_num_batched_tokens=64)
    records = serve(eng, [request("whole pool", prompt=19, max_tokens=1)])
    assert len(records[0].blocks[0].blocks) == 10, "nothing runs, so nothing is to spare"


def test_the_watermark_is_for_decodes():
    """They may take what an admission left."""
    eng = preemptive(num_blocks=7, max_model_len=14, watermark=0.2)
    records = serve(eng, [request("a", prompt=4, max_tokens=3), request("b", prompt=3, max_tokens=3)])
    assert records[0].admitted == ["a", "b"] and not any(record.preempted for record in records)


# -- priority ---------------------------------------------------------------------------------------------------------


def by_priority(**settings):
    return preemptive(policy="priority", **settings)


def test_the_more_important_are_admitted_first_and_equals_in_order_of_arrival():
    eng = by_priority(max_num_seqs=1)
    served = [request(f"{p}{n}", 1, 1, priority=p) for n, p in enumerate([3, 0, 2, 0, -1, 3])]
    records = serve(eng, served)
    assert [record.admitted[0] for record in records] == ["-14", "01", "03", "22", "30", "35"]


@BOTH_MODES
def test_the_least_important_gives_way_when_lanes_are_short(mode):
    eng = by_priority(max_num_seqs=2, preemption=mode)
    served = [
        request("low", 3, 4, priority=5, arrival=0.0),
        request("mid", 3, 6, priority=1, arrival=0.0),
        request("high", 2, 2, priority=0, arrival=1.0),
        request("equal", 2, 2, priority=1, arrival=1.0),
    ]
    records = serve(eng, served)
    (gone,) = (gone for record in records for gone in record.preempted)
    assert (gone, records[1].admitted) == (records[1].preempted[0], ["high"])
    assert (gone.id, gone.mode, gone.cause) == ("low", mode, "priority")
    assert gone.why == "it is less important, and request 'high' waits"
    assert records[1].waiting == Waiting("equal", "all 2 lanes are taken", 1)
    assert [id for record in records for id, _ in record.finished] == ["high", "equal", "mid", "low"]
    assert served[0].num_preemptions == 1


def test_nobody_gives_way_while_there_is_a_place():
    eng = by_priority(max_num_seqs=3)
    served = [request("low", 3, 4, priority=5, arrival=0.0), request("mid", 3, 4, priority=1, arrival=0.0)]
    records = serve(eng, [*served, request("high", 2, 2, priority=0, arrival=1.0)])
    assert records[1].admitted == ["high"] and not any(record.preempted for record in records)


def test_the_less_important_give_way_when_blocks_are_short_and_only_as_many_as_it_takes():
    """`high` needs 4 blocks, 2 are free. `small` has 1 and would not be enough; `big` has 5 and is, alone."""
    served = [
        request("top", 2, 9, priority=0, arrival=0.0),  # more important than `high`
        request("big", 9, 3, priority=5, arrival=0.0),
        request("small", 1, 3, priority=6, arrival=0.0),
        request("high", 8, 2, priority=2, arrival=1.0),
    ]
    eng = by_priority(max_num_seqs=4, num_blocks=10)
    records = serve(eng, served)
    assert [gone.id for gone in records[1].preempted] == ["big"] and records[1].admitted == ["high"]
    assert work_of(records[1])[:2] == [("top", "decode", 1), ("small", "decode", 1)]


def test_nobody_gives_way_when_it_would_not_be_enough():
    served = [
        request("top", 12, 8, priority=0, arrival=0.0),
        request("small", 2, 9, priority=6, arrival=0.0),
        request("high", 8, 3, priority=1, arrival=1.0),
    ]
    eng = by_priority(max_num_seqs=4, num_blocks=10)
    records = serve(eng, served)
    assert records[1].waiting == Waiting("high", "needs 4 blocks, 1 free", 0)
    assert {gone.cause for record in records for gone in record.preempted} == {"memory"}


def test_nobody_gives_way_to_one_whom_the_next_decodes_would_leave_no_block():
    """`high` needs two blocks. One is free and `low` has one, but `top` is about to take one."""
    served = [
        request("top", 4, 3, priority=0, arrival=0.0),
        request("low", 1, 2, priority=6, arrival=0.0),
        request("high", 3, 1, priority=1, arrival=1.0),
    ]
    records = serve(by_priority(max_num_seqs=2, num_blocks=4, max_model_len=8), served)
    assert not any(record.preempted for record in records)
    assert records[1].waiting == Waiting("high", "all 2 lanes are taken", 0)


def test_nobody_gives_way_to_one_whom_the_watermark_would_keep_out():
    """Without `low` one block is free beside the 4 that `high` needs, and two must be."""
    served = [
        request("top", 8, 2, priority=0, arrival=0.0),
        request("low", 4, 2, priority=6, arrival=0.0),
        request("high", 8, 1, priority=1, arrival=1.0),
    ]
    records = serve(by_priority(num_blocks=10, watermark=0.2), served)
    assert not any(record.preempted for record in records)
    assert records[1].waiting == Waiting("high", "needs 4 blocks and 2 to spare, 2 free", 0)


def test_when_all_who_run_give_way_nothing_has_to_be_spared():
    served = [request("low", 2, 3, priority=6, arrival=0.0), request("whole pool", 19, 1, arrival=1.0)]
    records = serve(by_priority(num_blocks=10, watermark=0.2, max_num_batched_tokens=64), served)
    assert [gone.id for gone in records[1].preempted] == ["low"] and records[1].admitted == ["whole pool"]


def test_nobody_gives_way_to_one_for_whom_no_budget_would_be_left():
    """The prompt of `top` spends the whole budget for five steps. `low` goes on meanwhile."""
    served = [
        request("low", 1, 9, priority=6, arrival=0.0),
        request("top", 17, 1, priority=0, arrival=1.0),
        request("high", 2, 1, priority=1, arrival=2.0),
    ]
    eng = by_priority(max_num_seqs=2, max_num_batched_tokens=5)
    records = serve(eng, served)
    assert [record.step for record in records if record.preempted] == [5]
    assert work_of(records[5]) == [("top", "prefill", 1), ("high", "prefill", 2)]


def test_equal_importance_takes_nobodys_place():
    eng = by_priority(max_num_seqs=1)
    records = serve(eng, [request("a", 2, 5, priority=3, arrival=0.0), request("b", 2, 1, priority=3, arrival=1.0)])
    assert not any(record.preempted for record in records)


def test_a_priority_that_nobody_looks_at_or_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match="priority=1 would not be looked at.*policy='priority'"):
        preemptive().add(request("a", priority=1))
    for priority in (0.5, float("nan"), "high"):  # one that cannot be compared would spoil the order of the queue
        with pytest.raises(TypeError, match="priority takes whole numbers"):
            request("a", priority=priority)


# -- ageing -----------------------------------------------------------------------------------------------------------


def wait_under_a_stream(length: int, level: int, aging_s: float | None) -> float:
    """How long `low` waits, whose importance is `level` levels below a stream that keeps the only lane busy.

    Each of the stream takes 4 s and they come every 4 s. `low` comes half a second after the first.
    """
    eng = by_priority(max_num_seqs=1, aging_s=aging_s)
    stream = [request(f"s{n}", 1, 4, priority=0, arrival=4.0 * n) for n in range(length)]
    served = [*stream, request("low", 1, 4, priority=level, arrival=0.5)]
    serve(eng, served)
    return metrics_of(eng.trace)["low"].queue


@pytest.mark.parametrize("level", [1, 2, 5])
@pytest.mark.parametrize("aging_s", [1.0, 7.0, 30.0])
def test_ageing_bounds_the_wait(level, aging_s):
    """Whoever comes more than `level * aging_s` after it ranks behind it. So it waits for those who came before that;
    the stream leaves no backlog but the one that is being served (4 s), and its turn comes at most 4 s after that.
    """
    for length in (20, 40, 80):
        assert wait_under_a_stream(length, level, aging_s) <= level * aging_s + 4


def test_without_ageing_the_wait_grows_with_the_stream():
    assert [wait_under_a_stream(length, 1, None) for length in (10, 20, 40)] == [39.5, 79.5, 159.5]


def test_an_aged_request_is_not_driven_out_again():
    """`low` gets the lane in a gap. All of the stream drive it out; with ageing, those who come within 20 s do."""
    for aging_s, times in ((None, 30), (20.0, 4)):
        eng = by_priority(max_num_seqs=1, aging_s=aging_s, preemption="swap", num_blocks=100, max_model_len=200)
        stream = [request(f"s{n}", 1, 2, priority=0, arrival=5.0 * n) for n in range(1, 31)]
        low = request("low", 1, 150, priority=1, arrival=0.5)
        serve(eng, [*stream, low])
        assert low.num_preemptions == times


# -- turns ------------------------------------------------------------------------------------------------------------


@BOTH_MODES
def test_turns_by_hand(mode):
    """One lane, three tokens a turn: who yields goes to the end of the queue."""
    eng = preemptive(max_num_seqs=1, max_tokens_per_turn=3, preemption=mode)
    served = [request("a", 2, 8), request("b", 2, 4), request("c", 2, 4)]
    records = serve(eng, served)
    assert "".join(id for record in records for id in record.emitted) == "aaabbbcccaaabcaa"
    gone = [gone for record in records for gone in record.preempted]
    assert {(g.mode, g.cause) for g in gone} == {(mode, "turn")}
    assert [g.id for g in gone] == ["a", "b", "c", "a"]
    assert gone[0].why == "its turn is over, and request 'b' waits"
    assert [made.num_preemptions for made in served] == [0, 0, 0], "a yield is no preemption"


@pytest.mark.parametrize(("prompt", "lanes"), [(2, 1), (110, 4)])
def test_one_long_generation_cannot_hold_the_batch(prompt, lanes):
    """Others come every 10 s and take 4; the only lane, or the memory, is taken. A turn is 5 tokens, and a step for
    what the long one has to compute again may come before it.
    """

    def longest_wait(turn):
        eng = preemptive(
            max_num_seqs=lanes, num_blocks=104, max_model_len=208, max_num_batched_tokens=256, max_tokens_per_turn=turn
        )
        others = [request(f"r{n}", prompt, 4, arrival=10.0 * n) for n in range(1, 15)]
        serve(eng, [request("long", 100, 100, arrival=0.0), *others])
        times = metrics_of(eng.trace)
        assert times["long"].output_tokens == 100
        return max(times[made.request_id].queue for made in others)

    assert longest_wait(None) == 90  # the first has come at 10
    assert longest_wait(5) <= 6


def test_nobody_yields_when_nobody_waits_or_there_is_a_place():
    eng = preemptive(max_num_seqs=2, max_tokens_per_turn=2)
    records = serve(eng, [request("a", 2, 9, arrival=0.0), request("b", 2, 3, arrival=4.0)])
    assert not any(record.preempted for record in records)


def test_who_has_prompt_left_has_not_had_its_turn():
    eng = preemptive(max_num_seqs=1, max_tokens_per_turn=1, max_num_batched_tokens=2)
    records = serve(eng, [request("a", 9, 2), request("b", 1, 1)])
    assert [record.step for record in records if record.preempted] == [5]
    assert records[5].preempted[0].tokens == 9


def test_a_turn_is_not_yielded_to_the_less_important():
    eng = by_priority(max_num_seqs=1, max_tokens_per_turn=2)
    records = serve(eng, [request("a", 2, 9, priority=0), request("b", 2, 2, priority=1), request("c", 2, 4)])
    assert "".join(id for record in records for id in record.emitted) == "aaccaaccaaaaabb"


def test_with_ageing_a_yield_counts_as_a_new_arrival():
    eng = by_priority(max_num_seqs=1, max_tokens_per_turn=2, aging_s=4.0)
    serve(eng, [request("a", 2, 12, priority=0, arrival=0.0), request("b", 2, 2, priority=1, arrival=0.0)])
    first = metrics_of(eng.trace)["b"].first_scheduled
    assert first == 4.0, "its rank, 1 + 0/4, is that of one of priority 0 who comes at 4; and it came first"


# -- abort, deadlines, faults -----------------------------------------------------------------------------------------


def in_every_state(mode, hasty=None, deadline=None):
    """An engine in which requests are running, in the middle of a prompt, preempted, swapped or waiting."""
    eng = preemptive(
        num_blocks=8,
        max_model_len=16,
        max_num_seqs=4,
        max_num_batched_tokens=6,
        preemption=mode,
        num_cpu_blocks=4 if mode == "swap" else None,
    )
    shapes = {"a": (3, 12), "b": (3, 12), "c": (7, 5), "d": (9, 3), "e": (2, 2)}
    return eng, [request(name, *shapes[name], deadline_s=deadline if name == hasty else None) for name in shapes]


def test_those_states_all_occur():
    seen = set()
    for mode in MODES:
        eng, served = in_every_state(mode)
        eng.add_all(served)
        while eng.has_work:
            eng.step()
            seen |= {"prompt" if made.status == "running" and made.gap > 1 else made.status for made in served}
    assert seen == {"waiting", "prompt", "running", "preempted", "swapped", "finished"}


@BOTH_MODES
@pytest.mark.parametrize("after", range(24))
def test_abort_at_any_moment(mode, after):
    """Everything comes back before the next step, and nothing more is emitted; the others do not notice."""
    for victim in range(5):
        eng, served = in_every_state(mode)
        eng.add_all(served)
        for _ in range(after):
            eng.step()
        told, ended = served[victim].output_token_ids, served[victim].finish_reason
        assert eng.abort(served[victim].request_id) == (ended is None)
        check_invariants(eng, served)
        drain(eng, served)
        check_trace(eng.trace.records, served)
        assert served[victim].finish_reason == (ended or "abort")
        assert served[victim].output_token_ids == told
        assert all(made.finish_reason == "length" for made in served if made is not served[victim])


@BOTH_MODES
@pytest.mark.parametrize("deadline", [0.5, 3, 4.5, 6, 8.25, 11, 14, 17.75, 20])
def test_a_deadline_at_any_moment(mode, deadline):
    """It ends the request at the beginning of the first step that begins when it has passed, or not at all."""
    for name in "abcde":
        eng, served = in_every_state(mode, hasty=name, deadline=deadline)
        (end,) = (record for record in serve(eng, served) if name in dict(record.finished))
        if dict(end.finished)[name] == "abort":
            assert end.t0 - 1 < deadline <= end.t0
        else:
            assert end.t0 < deadline
        assert all(made.finish_reason == "length" for made in served if made.request_id != name)


ERRORS = (RuntimeError("boom"), KeyboardInterrupt())  # the second reaches the caller of the step


def with_fault(error, when):
    """Four requests of which `c` is swapped out in step 2; the model raises in the first step whose plan is such.

    Returns the engine, the requests, and the record of that step.
    """
    eng = preemptive(num_blocks=6, max_model_len=12, preemption="swap")
    served = [request("a", 3, 9), request("b", 3, 6), request("c", 3, 6), request("d", 2, 2)]

    def before(plan):
        if when(plan):
            raise error
        check_plan(eng.scheduler, plan)

    eng.runner.before = before
    eng.add_all(served)
    while not any(made.finish_reason == "error" for made in served):
        try:
            eng.step()
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
    check_invariants(eng, served)
    failed = eng.trace[-1]
    assert failed.finished == [(id, "error") for id in {work.id: None for work in failed.work}] and not failed.emitted
    eng.runner.before = lambda plan: check_plan(eng.scheduler, plan)
    return eng, served, failed


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_when_a_step_with_a_copy_out_fails_the_victim_falls_back_to_recompute(error):
    eng, served, failed = with_fault(error, lambda plan: plan.swap_out)
    assert [(g.id, g.mode, g.tokens, g.blocks) for g in failed.preempted] == [("c", "recompute", 4, 0)]
    victim = served[2]
    assert (victim.status, victim.num_computed, victim.num_tokens) == ("preempted", 0, 5)
    assert eng.scheduler.cpu.free == eng.scheduler.allocator.free == 6
    drain(eng, served)
    check_trace(eng.trace.records, served)
    assert [made.finish_reason for made in served] == ["error", "error", "length", "length"]
    assert served[0].error == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_when_a_step_with_a_copy_in_fails_nothing_is_kept(error):
    eng, served, failed = with_fault(error, lambda plan: plan.swap_in)
    assert failed.resumed == ["b"] and dict(failed.finished)["b"] == "error"
    drain(eng, served)
    check_trace(eng.trace.records, served)
    assert [made.finish_reason for made in served] == ["length", "error", "length", "length"]


def test_a_victim_that_is_aborted_while_the_model_fails_stays_ended():
    eng = preemptive(num_blocks=6, max_model_len=12, preemption="swap")
    served = [request("a", 3, 9), request("b", 3, 6), request("c", 3, 6)]

    def before(plan):
        if plan.swap_out:
            eng.abort("c")
            raise RuntimeError("boom")

    eng.runner.before = before
    serve(eng, served)
    assert [made.finish_reason for made in served] == ["error", "error", "abort"]


# -- the trace --------------------------------------------------------------------------------------------------------


@BOTH_MODES
def test_the_block_moves_replay_to_the_block_tables_after_every_step(mode):
    eng, served = in_every_state(mode)
    eng.add_all(served)
    while eng.has_work:
        eng.step()
        assert replay(eng.trace.records) == {made.request_id: made.block_table for made in eng.scheduler.running}


@BOTH_MODES
def test_figures_add_up_in_every_step(mode):
    """Used: what those who run have in the cache. The rest of their blocks is reserved, or internal."""
    eng, served = in_every_state(mode)
    records = serve(eng, served)
    context, copied = {}, {}
    for record in records:
        for gone in record.preempted:
            copied[gone.id] = context.pop(gone.id) - gone.tokens
        context |= {id: copied[id] for id in record.resumed}
        for work in record.work:
            context[work.id] = max(context.get(work.id, 0), work.context)
        ended = dict(record.finished)
        moves = [move for move in record.blocks if move.id not in ended or move.move == "take"]
        owned = sum(map(len, replay([*records[: record.step], replace(record, blocks=moves)]).values()))
        assert record.kv["used"] == sum(context.values())
        assert record.kv["used"] + record.kv["reserved"] + record.kv["internal"] == 2 * owned
        assert (record.kv["total"], record.kv["external"], record.budget) == (16, 0, 6)
        for id in ended:
            context.pop(id, None)


@BOTH_MODES
def test_json_lines_out_and_in(mode, tmp_path):
    eng, served = in_every_state(mode)
    serve(eng, served)
    eng.trace.save(tmp_path / "t.jsonl")
    again = Trace.load(tmp_path / "t.jsonl")
    assert again == eng.trace
    (gone, *_) = (gone for record in again for gone in record.preempted)
    assert gone.mode == mode and gone.why.endswith("needs a block, 0 free")
    check_trace(again.records, served)


@BOTH_MODES
def test_without_a_trace_the_schedule_is_the_same(mode):
    plans = []
    for tracing in (True, False):
        eng, served = in_every_state(mode)
        eng.keep_trace = eng.scheduler.tracing = tracing
        eng.run(served)
        plans.append(eng.runner.plans)
    assert plans[0] == plans[1]


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preemption": "drop"}, "preemption='drop' is unknown: choose recompute, swap or auto"),
        ({"policy": "lottery"}, "policy='lottery' is unknown: choose fcfs or priority"),
        ({"aging_s": 3.0}, "aging_s=3.0, policy='fcfs': ageing takes seconds above 0, policy='priority'"),
        ({"aging_s": 0, "policy": "priority"}, "aging_s=0"),
        ({"aging_s": float("nan"), "policy": "priority"}, "aging_s=nan"),
        ({"max_tokens_per_turn": 0}, "max_tokens_per_turn=0 is not allowed: 1 or more, or None"),
        ({"watermark": 1.0}, "watermark=1.0 is not allowed: it is a share of the pool, from 0 to below 1"),
        ({"watermark": -0.1}, "watermark=-0.1"),
        ({"num_cpu_blocks": -1, "preemption": "swap"}, "num_cpu_blocks=-1 is not allowed: 0 or more"),
        ({"num_cpu_blocks": 9}, "num_cpu_blocks=9: preemption='recompute' moves nothing to the CPU"),
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens=2 is less than max_num_seqs=3"),
    ],
)
def test_settings_that_could_not_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        engine("preemptive", **settings)


# -- real models: preempted output is the output ----------------------------------------------------------------------


def serve_real(eng, served):
    """To the end, with what is free filled with NaN after every step."""
    eng.add_all(served)
    while eng.has_work:
        eng.step()
        check_invariants(eng, served)
        real.poison(eng)
    check_trace(eng.trace.records, served)


GREEDY = SamplingParams(8, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(8, seed=3, ignore_eos=True)


@BOTH_MODES
@pytest.mark.parametrize(("name", "block_size"), [("llama", 1), ("llama", 4), ("llama", 16), ("mistral", 3)])
def test_a_preemption_at_every_token_position_changes_nothing(name, block_size, mode):
    """At each number of computed tokens, from 1 in the middle of the prompt to the last decode."""
    alone = real.Alone(build(name))
    for position in range(1, 16):
        eng = real.engine(
            build(name), preemption=mode, block_size=block_size, num_blocks=96 // block_size, max_model_len=32,
            max_num_seqs=3, max_num_batched_tokens=8, long_prefill_token_threshold=1 if position < 9 else 0,
        )  # fmt: skip
        companion = Request(prompt(3, 2), SamplingParams(26, temperature=0, ignore_eos=True))
        victims = [Request(prompt(9, 1), GREEDY), Request(prompt(9, 1), SEEDED)]
        left = set(victims)

        def force(made, left=left, position=position):
            if made in left and made.num_computed == position:
                left.remove(made)
                return True
            return False

        eng.scheduler.force = force
        serve_real(eng, [companion, *victims])
        gone = [(gone.mode, gone.tokens) for record in eng.trace for gone in record.preempted]
        assert gone == [(mode, position if mode == "recompute" else 0)] * 2
        for made in (companion, *victims):
            alone.check(made)


@BOTH_MODES
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_preempted_again_and_again(name, mode):
    model, turns = build(name), count()
    eng = real.engine(model, preemption=mode, block_size=4, num_blocks=20, max_model_len=40, max_num_seqs=4)
    eng.scheduler.force = lambda made: next(turns) % 5 < 2
    served = [Request(prompt(n, 5), GREEDY) for n in (1, 15, 16, 17, 6)]
    serve_real(eng, served)
    assert sum(len(record.preempted) for record in eng.trace) > 10
    for made in served:
        check_greedy(model, made.prompt_token_ids, made.output_token_ids, 8)


@pytest.mark.parametrize(("mode", "cpu"), [("recompute", None), ("swap", 1), ("swap", 6), ("swap", None)])
@pytest.mark.parametrize("block_size", [1, 4, 7, 16])
def test_greedy_output_on_a_pool_that_fills(block_size, mode, cpu):
    """Without the hook: a pool that holds the longest request and no block more."""
    model = build("mistral")
    eng = real.engine(
        model, preemption=mode, num_cpu_blocks=cpu, block_size=block_size, num_blocks=-(-48 // block_size),
        max_model_len=48, max_num_seqs=4, max_num_batched_tokens=20, watermark=0.0,
    )  # fmt: skip
    shapes = [(8, 20), (7, 20), (3, 12), (16, 20), (1, 9), (30, 5)]
    served = [Request(prompt(n, 3), SamplingParams(m, temperature=0, ignore_eos=True)) for n, m in shapes]
    serve_real(eng, served)
    assert any(record.preempted for record in eng.trace)
    for made in served:
        check_greedy(model, made.prompt_token_ids, made.output_token_ids, made.params.max_tokens)
