"""The views of a trace: characters, pictures, Perfetto."""

import json
import subprocess
import sys
import warnings
from collections import defaultdict
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb

from minibatcher.trace import Arrival, BlockMove, Preemption, StepRecord, Trace, Waiting, Work
from minibatcher.views.device import busy_from, busy_share, busy_shares
from minibatcher.views.figure import block_map, compare, draw, grid, rows
from minibatcher.views.perfetto import events, to_perfetto
from minibatcher.views.states import CODE, STATES, Owned, lanes_shown, owners, preemptions
from minibatcher.views.text import GUTTER, describe, differences, headline, render, render_rich

IDLE, WAIT, GONE, PRE, DEC, AGAIN, WASTE = (
    CODE[name] for name in ("idle", "waiting", "preempted", "prefill", "decode", "recompute", "wasted")
)


def static_trace() -> Trace:
    """Two lanes, static: a and b form a batch, c waits for both; lane 1 is idle in the end.

    step     0 (1.0-2.0 s)      1 (2.0-2.5)   2 (2.5-3.0)    gap    3 (3.5-4.0)
    lane 0   a: prompt of 3     a: decode     a: finished           c: prompt of 4
    lane 1   b: 2 padding + 1   b: decode     b: decode
    """
    return Trace(
        {"stage": "static", "model": "some/hub/tiny"},
        [
            StepRecord(
                0,
                t0=1.0,
                t1=2.0,
                schedule_s=0.25,
                arrived=[Arrival("a", 0.5, 3, 2), Arrival("b", 1.0, 1, 9)],
                # The padding stands before b's prompt in the row, and after it in the list.
                work=[Work("a", 0, "prefill", 3, 3), Work("b", 1, "prefill", 1, 1), Work("b", 1, "wasted", 2, 1)],
                emitted={"a": [7], "b": [7]},
            ),
            StepRecord(
                1,
                t0=2.0,
                t1=2.5,
                arrived=[Arrival("c", 1.5, 4, 1), Arrival("d", 1.75, 4, 1)],
                work=[Work("a", 0, "decode", 1, 4), Work("b", 1, "decode", 1, 2)],
                emitted={"a": [7], "b": [7]},
                finished=[("a", "length")],
                waiting=Waiting("c", "the batch has 2 of 2 requests to finish", 1),
            ),
            StepRecord(
                2,
                t0=2.5,
                t1=3.0,
                work=[Work("b", 1, "decode", 1, 3), Work("a", 0, "wasted", 1, 4)],
                emitted={"b": [2]},
                finished=[("d", "abort"), ("b", "stop")],
                waiting=Waiting("c", "the batch has 1 of 2 requests to finish", 0),
            ),
            StepRecord(
                3,
                t0=3.5,
                t1=4.0,
                work=[Work("c", 0, "prefill", 4, 4)],
                emitted={"c": [7]},
                finished=[("c", "length")],
            ),
        ],
    )


def preemptive_trace() -> Trace:
    """A pool of three blocks of four tokens: b gives way so that a can grow, and is computed again when a has ended.

    step     0                1              2                  3
    lane 0   a: prompt of 4   a: decode      a: decode, ends    b: 4 again, and 1 new
    lane 1   b: prompt of 4   (b gave way)
    """
    gone = Preemption("b", "recompute", "memory", 4, 0, "request 'b' needs a block, 0 free")
    return Trace(
        {"stage": "preemptive", "settings": {"num_blocks": 3, "block_size": 4}},
        [
            StepRecord(
                0,
                arrived=[Arrival("a", 0.0, 4, 3), Arrival("b", 0.0, 4, 2)],
                admitted=["a", "b"],
                work=[Work("a", 0, "prefill", 4, 4), Work("b", 1, "prefill", 4, 4)],
                blocks=[BlockMove("a", "take", [0]), BlockMove("b", "take", [1])],
            ),
            StepRecord(
                1,
                preempted=[gone],
                work=[Work("a", 0, "decode", 1, 5)],
                blocks=[BlockMove("a", "take", [2]), BlockMove("b", "free", [1])],
            ),
            StepRecord(
                2,
                work=[Work("a", 0, "decode", 1, 6)],
                finished=[("a", "length")],
                blocks=[BlockMove("a", "free", [0, 2])],
            ),
            StepRecord(
                3,
                resumed=["b"],
                work=[Work("b", 0, "decode", 1, 5), Work("b", 0, "recompute", 4, 4)],
                blocks=[BlockMove("b", "take", [1, 0])],
            ),
        ],
    )


def long_trace(lanes: int, steps: int, kv: bool = True) -> Trace:
    """Iteration-level: lane i serves requests of i % 7 + 3 steps; the queue shrinks."""
    trace = Trace({"stage": "iteration", "model": "tiny"})
    for step in range(steps):
        record = StepRecord(step, t0=step * 0.1, t1=step * 0.1 + 0.1, budget=512)
        for lane in range(lanes):
            number, position = divmod(step, lane % 7 + 3)
            kind, tokens = ("prefill", 20) if position == 0 else ("decode", 1)
            record.work.append(Work(f"{lane}.{number}", lane, kind, tokens, 20 + position))
        record.waiting = Waiting("next", "all lanes are taken", 100 * (steps - step) // steps)
        if kv:
            record.kv = {"used": 25 * lanes, "total": 100 * lanes, "reserved": 15 * lanes, "internal": 5 * lanes}
        trace.append(record)
    return trace


@st.composite
def traces(draw_value) -> Trace:
    """Random work in random lanes; steps follow one another with or without a gap and may take no time."""
    trace, now = Trace(), draw_value(st.floats(0, 1e5))
    trace.meta["device"] = draw_value(st.sampled_from(["cpu", "cuda:0"]))
    for step in range(draw_value(st.integers(0, 12))):
        t0 = now + draw_value(st.sampled_from([0.0, 1e-9, 0.3]))
        now = t0 + draw_value(st.floats(0, 2))
        record = StepRecord(step, t0, now, schedule_s=draw_value(st.floats(0, 1)))
        for lane in draw_value(st.sets(st.integers(0, 5))):
            kinds = draw_value(st.sampled_from([["decode"], ["wasted"], ["prefill", "wasted"], ["wasted", "prefill"]]))
            record.work += [Work(f"r{lane}", lane, kind, 2, 3) for kind in kinds]
        record.arrived = [Arrival(f"r{step}", t0 - draw_value(st.floats(0, 1)), 3, 4)]
        trace.append(record)
    return trace


# -- the states -------------------------------------------------------------------------------------------------------


def test_states_by_lane():
    assert grid(static_trace()).tolist() == [
        [PRE, DEC, WASTE, PRE],
        [PRE, DEC, DEC, IDLE],
    ]
    assert rows(static_trace(), "lane") == [0, 1]
    assert grid(static_trace()).dtype == np.uint8


def test_states_by_request():
    assert rows(static_trace(), "request") == ["a", "b", "c", "d"]
    assert grid(static_trace(), "request").tolist() == [
        [PRE, DEC, WASTE, IDLE],
        [PRE, DEC, DEC, IDLE],
        [IDLE, WAIT, WAIT, PRE],  # arrives in step 1
        [IDLE, WAIT, IDLE, IDLE],  # arrives in step 1, and has been aborted when step 2 begins
    ]


def test_request_that_arrived_before_the_trace_began_waits_from_its_beginning():
    trace = Trace({}, static_trace().records[2:])
    assert dict(zip(rows(trace, "request"), grid(trace, "request").tolist(), strict=True)) == {
        "b": [DEC, IDLE],
        "a": [WASTE, IDLE],
        "c": [WAIT, PRE],
        "d": [IDLE, IDLE],
    }


def test_states_with_a_preemption():
    assert grid(preemptive_trace()).tolist() == [[PRE, DEC, DEC, AGAIN], [PRE, IDLE, IDLE, IDLE]]
    assert grid(preemptive_trace(), "request").tolist() == [[PRE, DEC, DEC, IDLE], [PRE, GONE, GONE, AGAIN]]
    assert [(step, lane, gone.id) for step, lane, gone in preemptions(preemptive_trace())] == [(1, 1, "b")]


def test_a_yield_at_the_end_of_a_turn_is_waiting():
    trace = preemptive_trace()
    trace[1].preempted = [trace[1].preempted[0]._replace(cause="turn")]
    assert grid(trace, "request").tolist()[1] == [PRE, WAIT, WAIT, AGAIN]
    assert not list(preemptions(trace))


def test_a_victim_that_the_trace_never_saw_at_work():
    trace = Trace({}, preemptive_trace().records[1:3])
    assert rows(trace, "request") == ["a"]
    assert grid(trace, "request").tolist() == [[DEC, DEC]]
    assert [lane for _, lane, _ in preemptions(trace)] == [None]
    paint(draw(trace))


def test_owners_while_a_step_runs():
    trace = preemptive_trace()
    assert [owners(trace, step) for step in range(4)] == [
        {"a": Owned([0], 4), "b": Owned([1], 4)},
        {"a": Owned([0, 2], 5)},  # b gave way before the step
        {"a": Owned([0, 2], 6)},  # a leaves after it
        {"b": Owned([1, 0], 5)},
    ]


def test_row_of_padding_and_prompt_is_prefill_in_whatever_order_they_stand():
    work = [Work("a", 0, "wasted", 2, 1), Work("a", 0, "prefill", 1, 1)]
    for order in (work, work[::-1]):
        trace = Trace({}, [StepRecord(work=order)])
        assert grid(trace).tolist() == grid(trace, "request").tolist() == [[PRE]]


def test_each_state_has_its_own_sign_and_colour():
    for look in ("name", "sign", "light", "dark"):
        assert len({getattr(state, look) for state in STATES}) == len(STATES)
    assert all(len(state.sign) == 1 and state.sign.isascii() for state in STATES)
    assert IDLE == 0  # a picture's empty cells


# -- the device -------------------------------------------------------------------------------------------------------


def test_of_a_few_lanes_those_that_never_worked_are_shown_too():
    trace = static_trace()
    used = 1 + max(work.lane for record in trace for work in record.work)
    for lanes, drawn in ((used + 1, used + 1), (8, 8), (9, used), (64, used)):
        trace.meta["settings"] = {"max_num_seqs": lanes}
        assert lanes_shown(trace) == len(grid(trace)) == drawn and f" of {lanes} lanes" in describe(trace)
    trace.meta["settings"] = {}
    assert lanes_shown(trace) == used


def test_when_the_device_is_busy():
    trace = static_trace()
    assert [busy_from(trace, record) for record in trace] == [1.25, 2.0, 2.5, 3.5]  # scheduling comes first
    assert list(busy_shares(trace)) == [0.75, 1, 1, 0.5]
    assert busy_share(trace) == pytest.approx(2.25 / 3)
    trace.meta["device"] = "cuda:0"  # its own times: it was scheduled before
    assert busy_from(trace, trace[0]) == 1.0 and busy_share(trace) == pytest.approx(2.5 / 3)
    trace[3].work = []
    assert busy_from(trace, trace[3]) == 4.0 and list(busy_shares(trace))[3] == 0
    modelled = Trace({}, [StepRecord(t1=2.0, work=[Work("a", 0, "decode", 1, 1)], cost={"overhead": 0.5, "mfu": 0.1})])
    assert busy_share(modelled) == 0.75  # until its kernels are launched it waits
    modelled[0].cost = {"overhead": 2.0}  # a toy's clock, on which a step is nothing but overhead
    assert busy_share(modelled) == 1.0
    assert busy_share(Trace()) == 0 and list(busy_shares(Trace())) == []


# -- characters -------------------------------------------------------------------------------------------------------

LEGEND = "P prefill  d decode  R recompute  / wasted  . idle"


def test_text():
    expected = f"lane 0  Pd/P\nlane 1  Pdd.\nstep    0\n{LEGEND}"
    assert render(static_trace()) == render(static_trace().records) == expected


def test_text_with_a_preemption():
    assert render(preemptive_trace()) == f"lane 0  PddR\nlane 1  P...\nstep    0\n{LEGEND}"


def test_text_of_the_last_steps():
    assert render(static_trace(), width=2) == f"lane 0  /P\nlane 1  d.\nstep\n{LEGEND}"
    # The window does not use lane 1, but a live view keeps its rows.
    assert render(static_trace(), width=1) == f"lane 0  P\nstep\n{LEGEND}"
    assert render(static_trace(), width=1, lanes=2) == f"lane 0  P\nlane 1  .\nstep\n{LEGEND}"
    assert render(static_trace(), width=0, lanes=1) == f"lane 0  \nstep\n{LEGEND}"


def test_text_of_nothing():
    assert render(Trace()) == render([]) == f"step\n{LEGEND}"


def test_step_numbers_stand_under_their_steps():
    trace = Trace({}, [StepRecord(step) for step in range(95, 125)])
    assert render(trace, 30).splitlines()[0] == "step         100       110       120"
    assert render(trace.records[:26], 26).splitlines()[0] == "step         100       110"  # no room for 120
    assert render(trace.records[:28], 28).splitlines()[0] == "step         100       110       120"


def test_lanes_of_two_digits_stay_aligned():
    lines = render(long_trace(12, 30), width=20).splitlines()
    assert {len(line) for line in lines[:12]} == {GUTTER + 20}
    assert lines[10].startswith("lane 10 ")


def test_colours_change_nothing_but_colours():
    for trace in (static_trace(), long_trace(12, 30), Trace()):
        assert render_rich(trace, 20).plain == render(trace, 20)
    spans = {(span.start, span.end): span.style for span in render_rich(static_trace()).spans}
    prefill, wasted = STATES[PRE].dark, STATES[WASTE].dark
    assert spans[8, 9] == f"black on {prefill}"  # lane 0, step 0
    assert spans[10, 11] == f"black on {wasted}"  # lane 0, step 2
    assert spans[24, 25] == "dim"  # lane 1, step 3


def test_words():
    # 1 of 14 rows is a's after its end and 2 are padding; 3.5 s from a's arrival at 0.5; lanes busy 2, 2, 2, 1.
    assert headline(static_trace()) == (
        "static on tiny: 4 requests, 4 steps, 3.50 s, 1.7 output tokens/s, 21% of the computed positions wasted"
    )
    assert describe(static_trace()) == (
        f"Timeline of {headline(static_trace())}; 1.8 of 2 lanes are busy and 1.5 useful on average, "
        "and at most 2 requests wait."
    )
    assert headline(Trace()).startswith("trace: 0 requests")


def test_differences():
    fast = static_trace()
    for record in fast:
        record.t0, record.t1 = 0.5 + (record.t0 - 0.5) / 2, 0.5 + (record.t1 - 0.5) / 2
    table = {name: cells for name, *cells in differences(static_trace(), fast)}
    assert table["output tokens/s"] == ["1.71", "3.43", "+100%"]
    assert table["time"] == ["3.5 s", "1.75 s", "-50%"]
    assert table["positions wasted"] == ["21%", "21%", "+0 points"]
    assert table["KV used, mean"] == ["-", "-", ""]  # neither has a pool
    assert differences(Trace(), Trace())[0] == ("output tokens/s", "0", "0", "")


# -- pictures ---------------------------------------------------------------------------------------------------------


def paint(figure) -> FigureCanvasAgg:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def cells(figure, panel: int = 0) -> list:
    return figure.axes[panel].images[0].get_array().filled(IDLE).tolist()


def markers(figure) -> list[PathCollection]:
    """The letters of each state."""
    return [artist for artist in figure.axes[0].collections if isinstance(artist, PathCollection)]


def letters(figure) -> int:
    return sum(len(artist.get_offsets()) for artist in markers(figure))


def hatched(figure) -> int:
    """Rectangles that carry a hatch."""
    return sum(len(patch.get_path().vertices) // 5 for patch in figure.axes[0].patches if patch.get_hatch())


def strips(figure) -> list[str]:
    """What its panels are called; the device's says it in a text of its own."""
    return [ax.get_ylabel() or ax.texts[0].get_text() for ax in figure.axes]


def test_picture_by_steps():
    figure = draw(static_trace())
    assert cells(figure) == grid(static_trace()).tolist()
    assert strips(figure) == ["lane", "tokens", "waiting", "device busy 75%"]  # no pool, no KV strip
    assert figure.axes[0].get_title("left") == headline(static_trace())
    decode, prefill, _recompute, wasted = (patch.get_data() for patch in figure.axes[1].patches)
    assert decode.values.tolist() == [0, 2, 1, 0]
    assert (prefill.values - prefill.baseline).tolist() == [4, 0, 0, 4]
    assert (wasted.values - wasted.baseline).tolist() == [2, 0, 1, 0]  # the padding shows here
    assert figure.axes[2].patches[0].get_data().values.tolist() == [0, 2, 1, 0]


def test_picture_by_time():
    figure = draw(static_trace(), x="time")
    # Seconds since a's arrival at 0.5; steps that touch have a gap of no width between them.
    assert figure.axes[1].patches[0].get_data().edges.tolist() == [0.5, 1.5, 1.5, 2.0, 2.0, 2.5, 3.0, 3.5]
    assert cells(figure)[0] == [PRE, IDLE, DEC, IDLE, WASTE, IDLE, PRE]
    hair = static_trace()
    hair[1].t0 += 0.0001  # of 3.5 s: thinner than a pixel
    assert draw(hair, x="time").axes[1].patches[0].get_data().edges[1:3].tolist() == [1.5, 1.5]
    assert figure.axes[0].get_xlim() == (0.0, 3.5)
    assert figure.axes[-1].get_xlabel() == "seconds"
    trace = static_trace()
    trace.meta["clock"] = "virtual"
    assert draw(trace, x="time").axes[-1].get_xlabel() == "modelled seconds"


def test_the_device_is_busy_for_a_share_of_each_step_and_waits_in_the_gaps():
    by_step = draw(static_trace()).axes[3].patches[0].get_data()
    assert by_step.values.tolist() == [0.75, 1, 1, 0.5]  # step 0 is scheduled for 0.25 s, and step 3 comes 0.5 s late
    by_time = draw(static_trace(), x="time").axes[3].patches[0].get_data()
    assert by_time.edges.tolist() == [0.75, 1.5, 1.5, 2.0, 2.0, 2.5, 3.0, 3.5]
    assert by_time.values.tolist() == [1, 0, 1, 0, 1, 0, 1]
    hair = static_trace()
    hair[1].t0, hair[1].t1 = 2.002, 2.005  # the gap does not show, and counts
    assert draw(hair, x="time").axes[3].patches[0].get_data().values[2] == pytest.approx(0.6)


def test_picture_by_request_and_time_shows_waiting_from_the_arrival():
    figure = draw(static_trace(), by="request", x="time")
    (bars,) = [patch for patch in figure.axes[0].patches if not patch.get_hatch()]
    corners = bars.get_path().vertices.reshape(4, 5, 2)
    assert corners[:, :2, 0].tolist() == [[0.0, 0.5], [0.5, 0.5], [1.0, 3.0], [1.25, 2.5]]  # d until it is aborted
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "c", "d"]


def test_strips_of_pool_and_budget():
    figure = draw(long_trace(8, 40))
    assert strips(figure) == ["lane", "tokens", "waiting", "KV tokens", "device busy 100%"]
    used, unused = (patch.get_data() for patch in figure.axes[3].patches)
    assert set(used.values) == {200}
    assert set(unused.values - unused.baseline) == {160}
    assert figure.axes[3].lines[0].get_ydata()[0] == 800
    assert figure.axes[1].lines[0].get_ydata()[0] == 512
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["prefill", "decode", "budget", "KV used", "KV reserved, unused", "KV capacity"]


def test_large_cells_have_letters_and_small_ones_a_hatch():
    small, large = draw(long_trace(64, 500, kv=False)), draw(long_trace(8, 40, kv=False))
    assert (letters(large), hatched(large)) == (8 * 40, 0)
    shapes = [marker.get_paths()[0].get_extents() for marker in markers(large) if len(marker.get_offsets())]
    assert all(0.4 < shape.height / shape.width < 2.5 for shape in shapes) and len(shapes) == 2  # one letter each
    prefills = int((grid(long_trace(64, 500)) == PRE).sum())
    assert (letters(small), hatched(small)) == (0, prefills)  # each prefill is one step
    low = draw(long_trace(8, 500, kv=False))  # high enough for letters, and too narrow
    assert (letters(low), hatched(low)) == (0, int((grid(long_trace(8, 500)) == PRE).sum()))
    assert hatched(draw(static_trace())) == 1  # what is wasted is hatched at any size


def test_number_of_artists_does_not_grow_with_the_cells():
    count = [len(draw(long_trace(64, steps)).findobj()) for steps in (100, 500)]
    assert abs(count[0] - count[1]) < 50  # ticks


@pytest.mark.parametrize("by", ["lane", "request"])
@pytest.mark.parametrize("x", ["step", "time"])
def test_nothing_is_cut_off(by, x):
    long_ids = static_trace()
    long_ids.records[0].arrived[0] = Arrival("$x_{$-a-very-long-id", 0.5, 3, 2)
    for figure in (
        draw(long_ids, by, x),
        draw(preemptive_trace(), by, x),
        draw(long_trace(64, 200), by, x),
        compare(static_trace(), long_trace(8, 40), by, x),
    ):
        paint(figure)
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#111111")])
def test_themes(theme, paper):
    figure = draw(static_trace(), by="request", theme=theme)
    ax = figure.axes[0]
    assert to_hex(figure.get_facecolor()) == paper
    image = paint(figure).buffer_rgba()
    at = ax.transData.transform([(3.3, 1.3), (1.3, 2.3), (0.3, 0.3), (1.3, 0.3)])  # beside the cells' letters
    colours = [to_hex(np.array(image)[::-1][int(y), int(x)] / 255) for x, y in at]
    assert colours == [getattr(STATES[code], theme).lower() for code in (IDLE, WAIT, PRE, DEC)]
    ink = [ax.title, ax.yaxis.label, *ax.get_yticklabels(), *figure.legends[0].get_texts()]
    away = [abs(sum(to_rgb(text.get_color())) - sum(to_rgb(paper))) for text in ink]
    assert min(away) > 2  # of 3: black on white, white on black


def test_preemptions_are_marked():
    figure = draw(preemptive_trace())
    *_, marks = figure.axes[0].collections
    assert marks.get_offsets().tolist() == [[0.5, 1.0]]  # where step 1 begins, in lane 1
    assert "preemption" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert draw(preemptive_trace(), x="time").axes[0].collections
    recompute = figure.axes[1].patches[2].get_data()
    assert (recompute.values - recompute.baseline).tolist() == [0, 0, 0, 4]


def test_picture_shows_itself_in_a_notebook():
    for picture in (draw(static_trace()), block_map(preemptive_trace(), 0)):
        assert picture._repr_png_().startswith(b"\x89PNG")


def test_block_map():
    def labels(step: int, **more) -> dict[str, tuple[float, float]]:
        return {
            text.get_text(): text.get_position() for text in block_map(preemptive_trace(), step, **more).axes[0].texts
        }

    assert labels(0) == {"a:0": (0.5, 0), "b:0": (1.5, 0)}
    assert labels(1) == {"a:0": (0.5, 0), "a:1": (2.5, 0)}
    assert labels(-1, request="b") == {"b:1": (0.5, 0), "b:0": (1.5, 0)}
    figure = block_map(preemptive_trace(), 1, theme="dark")
    assert figure.axes[0].get_title("left") == "preemptive, step 1: 2 of 3 blocks of 4 tokens are taken"
    assert "a: 5 of 8" in [text.get_text() for text in figure.legends[0].get_texts()]
    line = block_map(preemptive_trace(), 3, request="b").axes[0].lines[0]
    assert line.get_xdata().tolist() == [1.5, 0.5]  # logical 0 lies in block 1
    assert line.get_ydata()[0] < line.get_ydata()[1], "downwards, so that it does not fold over itself"
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["0", "1", "2"]
    with pytest.raises(IndexError):
        block_map(preemptive_trace(), 4)
    with pytest.raises(ValueError, match="no pool"):
        block_map(static_trace(), 0)


def test_block_map_leaves_out_what_was_never_used():
    trace = preemptive_trace()
    trace.meta["settings"]["num_blocks"] = 1000
    figure = block_map(trace, 0)
    assert figure.axes[0].get_xlim() == (0, 16)
    assert "blocks 16 to 999, never used, are left out" in figure.axes[0].get_title("left")


def test_block_map_numbers_its_blocks():
    def below(trace: Trace) -> list[str]:
        return [text.get_text() for text in block_map(trace, 0).axes[0].get_xticklabels()]

    trace = preemptive_trace()
    trace.meta["settings"]["num_blocks"] = 40
    trace[0].blocks[0].blocks[0] = 20  # a second row
    assert below(trace) == [f"+{column}" for column in range(16)]
    trace[0].blocks[0].blocks[0] = 2000
    trace.meta["settings"]["num_blocks"] = 2001
    assert below(trace) == [], "too narrow for numbers"


def test_compare_has_one_scale():
    figure = compare(static_trace(), long_trace(8, 40, kv=False))
    names = ["lane", "tokens", "waiting"]
    assert strips(figure) == [*names, "device busy 75%", *names, "device busy 100%"]
    assert {ax.get_xlim() for ax in figure.axes} == {(-0.5, 39.5)}
    assert all(figure.axes[i].get_ylim() == figure.axes[4 + i].get_ylim() for i in (1, 2, 3))
    assert [bool(ax.get_xlabel()) for ax in figure.axes] == [False] * 7 + [True]
    assert cells(figure, 0) == grid(static_trace()).tolist()
    assert np.shape(cells(figure, 4)) == (8, 40)


def test_compare_says_what_differs():
    fast = static_trace()
    for record in fast:
        record.t0, record.t1 = 0.5 + (record.t0 - 0.5) / 2, 0.5 + (record.t1 - 0.5) / 2
    titles = [ax.get_title("left") for ax in compare(static_trace(), fast).axes[::4]]
    assert titles == [headline(static_trace()), f"{headline(fast)} (2.00 times the tokens/s above)"]


@settings(max_examples=15, deadline=None)
@given(traces(), st.sampled_from(["lane", "request"]), st.sampled_from(["step", "time"]))
def test_any_trace_can_be_drawn(trace, by, x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if any(record.work for record in trace):
            paint(draw(trace, by, x))
        else:
            with pytest.raises(ValueError, match="nothing was computed"):
                draw(trace, by, x)


def test_drawing_leaves_matplotlibs_settings_alone():
    names = matplotlib.rcParams.keys() - {"backend"}  # asking for it would choose one
    before = {name: matplotlib.rcParams[name] for name in names}
    draw(static_trace(), theme="dark")
    assert {name: matplotlib.rcParams[name] for name in names} == before


def test_what_is_imported():
    def loaded(module: str, of: set[str]) -> set[str]:
        code = f"import sys, {module}; print(*sys.modules)"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        return of & set(out.split())

    heavy = {"torch", "numpy", "matplotlib", "rich"}
    assert loaded("minibatcher.views.text, minibatcher.views.perfetto, minibatcher.measure.metrics", heavy) == set()
    assert loaded("minibatcher.views.figure", {"torch", "matplotlib.pyplot", "numpy"}) == {"numpy"}


# -- Perfetto ---------------------------------------------------------------------------------------------------------


def test_perfetto_events():
    out = events(static_trace())
    names = {event["tid"]: event["args"]["name"] for event in out if event["name"] == "thread_name"}
    assert list(names.values()) == ["device", "engine", "lane 00", "lane 01", "requests"]

    def on(track: str) -> list[tuple]:
        of_track = [event for event in out if event["ph"] in "Xi" and names[event["tid"]] == track]
        return [(event["name"], event["ts"], event.get("dur")) for event in of_track]

    # Microseconds since a's arrival at 0.5 s.
    assert on("engine")[:2] == [("schedule", 0.5e6, 0.25e6), ("execute", 0.75e6, 0.75e6)]
    assert on("device")[1:] == [("busy", 1.5e6, 0.5e6), ("busy", 2.0e6, 0.5e6), ("busy", 3.0e6, 0.5e6)]
    assert on("device")[0] == ("busy", 0.75e6, 0.75e6)
    assert on("lane 00") == [
        ("prefill a", 0.5e6, 1e6),
        ("decode a", 1.5e6, 0.5e6),
        ("wasted a", 2.0e6, 0.5e6),
        ("prefill c", 3.0e6, 0.5e6),
    ]
    assert [name for name, _, _ in on("lane 01")] == ["prefill b", "decode b", "decode b"]
    assert on("requests")[:4] == [
        ("a arrives", 0.0, None),
        ("b arrives", 0.5e6, None),
        ("c arrives", 1.0e6, None),
        ("d arrives", 1.25e6, None),
    ]
    assert ("d ends", 2.5e6, None) in on("requests")
    (prefill_b,) = [event for event in out if event["name"] == "prefill b"]
    assert prefill_b["args"] == {"request": "b", "tokens": 1, "context": 1, "step": 0, "padding": 2}
    counters = [(event["name"], event["ts"], event["args"]) for event in out if event["ph"] == "C"]
    assert counters[:2] == [
        ("scheduled tokens", 0.5e6, {"prefill": 4, "decode": 0, "wasted": 2}),
        ("waiting", 0.5e6, {"requests": 0}),
    ]
    assert ("waiting", 1.5e6, {"requests": 2}) in counters
    assert not any(name == "kv tokens" for name, _, _ in counters)


def test_perfetto_with_a_gpus_own_times():
    trace = static_trace()
    trace.meta["device"], trace[3].schedule_s = "cuda:0", 0.125
    names = ("schedule", "execute", "busy")
    spans = [(event["name"], event["ts"], event["dur"]) for event in events(trace) if event["name"] in names]
    # It was scheduled before the device began, as far as there was time.
    assert spans[:3] == [("schedule", 0.25e6, 0.25e6), ("execute", 0.5e6, 1e6), ("busy", 0.5e6, 1e6)]
    assert spans[9:] == [("schedule", 2.875e6, 0.125e6), ("execute", 3e6, 0.5e6), ("busy", 3e6, 0.5e6)]


def test_perfetto_tracks_of_many_lanes_sort_by_number():
    trace = Trace({}, [StepRecord(work=[Work(str(lane), lane, "decode", 1, 5) for lane in (120, 3, 45)])])
    names = [event["args"]["name"] for event in events(trace) if event["name"] == "thread_name"]
    assert names == sorted(names) == ["device", "engine", "lane 003", "lane 045", "lane 120", "requests"]


def test_perfetto_counts_the_pool():
    out = events(long_trace(8, 3))
    pool = [event["args"] for event in out if event["name"] == "kv tokens"]
    assert pool == [{"used": 200, "reserved": 160}] * 3


@settings(deadline=None)
@given(traces())
def test_perfetto_spans_do_not_overlap(trace):
    spans = defaultdict(list)
    for event in events(trace):
        assert event.get("ts", 0) >= 0
        if event["ph"] == "X":
            # As Perfetto reads them: whole nanoseconds.
            spans[event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    for track in spans.values():
        track.sort()
        assert all(dur >= 0 for _, dur in track)
        assert all(start + dur <= later for (start, dur), (later, _) in pairwise(track))


def test_perfetto_file(tmp_path):
    path = tmp_path / "trace.json"
    to_perfetto(static_trace(), path)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["traceEvents"] == events(static_trace())
    assert data["otherData"]["stage"] == "static"
    to_perfetto(Trace(), path)
    assert [event["ph"] for event in json.loads(path.read_text())["traceEvents"]] == ["M"] * 4
