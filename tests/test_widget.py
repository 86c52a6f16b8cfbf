"""The widgets, seen from Python; test_browser.py has them in a page."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode

import ipywidgets
import nbformat
import pytest
from nbclient import NotebookClient
from stub import engine, request
from traitlets import TraitError

from minibatcher.trace import Arrival, Preemption, StepRecord, Trace, Waiting, Work
from minibatcher.views import widget
from minibatcher.views.feed import feed, notes, what_is_done
from minibatcher.views.html import to_html
from minibatcher.views.predict import Predict
from minibatcher.views.states import STATES
from minibatcher.views.widget import BlockMap, Compare, Live, Timeline, live


def trace(stage: str = "iteration") -> Trace:
    return engine(stage).run([request("a"), request("b", 5), request("c", arrival=2.0)])


def parsed(lines: str) -> list[StepRecord]:
    return [StepRecord.from_json(line) for line in lines.splitlines()]


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_a_feed_is_the_trace_without_its_tokens():
    sent = json.loads(json.dumps(feed(trace())))
    (only,) = sent["traces"]
    meta, *lines = only["lines"].splitlines()
    assert json.loads(meta) == trace().meta
    expected = trace().records
    for record in expected:
        record.emitted = {id: [len(tokens)] for id, tokens in record.emitted.items()}
    assert parsed("\n".join(lines)) == expected
    assert [state["name"] for state in sent["states"]] == [state.name for state in STATES]
    assert "3 requests" in only["title"] and "at most" in only["alt"]
    assert sent["differences"] == []


def test_a_feed_keeps_what_the_trace_has():
    gone = Preemption("a", "swap", "memory", 0, 2, "request 'b' needs a block, 0 free")
    record = StepRecord(preempted=[gone], work=[Work("b", 0, "decode", 1, 3)], cost={"seconds": 0.1})
    assert parsed(feed(Trace({}, [record]))["traces"][0]["lines"].partition("\n")[2]) == [record]


def test_a_step_in_words():
    gone = Preemption("b", "recompute", "memory", 4, 0, "request 'a' needs a block, 0 free")
    swapped = gone._replace(id="c", mode="swap", tokens=0, blocks=1)
    record = StepRecord(
        t0=1.0,
        t1=3.0,
        schedule_s=0.5,
        work=[Work("a", 0, "decode", 1, 5), Work("d", 2, "prefill", 3, 3), Work("d", 2, "wasted", 2, 3)],
        arrived=[Arrival(f"r{i}", 0.0, 3, 4) for i in range(10)],
        finished=[("a", "length")],
        preempted=[gone, swapped, gone._replace(cause="turn")],
        waiting=Waiting("b", "needs 2 blocks, 0 free", 11),
        kv={"used": 8, "total": 12, "reserved": 3, "internal": 1, "external": 0},
        budget=32,
        cost={"seconds": 0.01, "weights": 0.00912, "overhead": 1e-6, "mfu": 0.0041, "mbu": 0.28},
    )
    ((busy, said, why),) = notes(Trace({"settings": {"max_num_seqs": 4}}, [record]), [record])
    assert busy == pytest.approx(1.5 - 1e-6)
    assert said == (
        "6 tokens of a budget of 32: 1 decode, 3 prefill, 2 wasted. 2 of 4 lanes busy. "
        "KV: 8 of 12 tokens used, 3 reserved, 1 lost inside blocks. "
        "The GPU, modelled: weights 9.12 ms; MFU 0.41%, MBU 28%. "
        "Arrived: r0, r1, r2, r3, r4, r5, r6, r7 and 2 more. Finished: a (length). "
        "b is preempted by recompute, 4 tokens lost: request 'a' needs a block, 0 free. "
        "c is preempted by swap, 1 block moved to the CPU: request 'a' needs a block, 0 free. "
        "b yields, 4 tokens lost: request 'a' needs a block, 0 free."
    )
    assert why == "Request b waits: needs 2 blocks, 0 free. 11 more behind it."
    assert what_is_done(StepRecord()) == "Nothing is computed. 0 lanes busy."


def test_two_traces_come_with_their_differences():
    sent = feed(trace("static"), trace())
    assert len(sent["traces"]) == 2
    assert [name for name, *_ in sent["differences"]][:2] == ["output tokens/s", "time"]


# -- widgets ----------------------------------------------------------------------------------------------------------


def test_a_page_that_is_loaded_anew_gets_all_steps():
    shown = Timeline(trace(), by="request", x="time", picked="a")
    state = shown.get_state()
    assert (state["by"], state["x"], state["cursor"], state["picked"]) == ("request", "time", 0, "a")
    shown.traces[0].append(StepRecord(99))
    assert parsed(shown.get_state()["traces"]["traces"][0]["lines"].partition("\n")[2])[-1].step == 99


def test_other_traces_can_be_put_in():
    shown = Timeline(trace())
    shown.traces = [Trace({"stage": "other"})]
    assert [sent["lines"] for sent in shown.get_state()["traces"]["traces"]] == ['{"schema": 1, "stage": "other"}\n']


@pytest.mark.parametrize("bad", [{"by": "slot"}, {"x": "seconds"}, {"cursor": "end"}, {"lanes": 3}])
def test_bad_looks_are_refused(bad):
    with pytest.raises((TraitError, TypeError), match=next(iter(bad))):
        Timeline(trace(), **bad)


def png(shown: Timeline) -> bytes:
    data, _ = shown._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    return b64decode(data["image/png"])


def test_a_saved_notebook_has_the_picture():
    pool = {"settings": {"num_blocks": 64, "block_size": 4}}
    for shown in (Timeline(trace()), Compare(trace("static"), trace()), BlockMap(Trace(pool, trace().records))):
        assert png(shown).startswith(b"\x89PNG")
        assert shown._repr_mimebundle_()[0]["text/plain"].startswith("Timeline of ")


def test_nothing_has_no_picture():
    data, _ = Timeline(Trace())._repr_mimebundle_()
    assert "image/png" not in data


def test_matplotlib_is_imported_for_a_picture_only():
    code = (
        "import sys\n"
        "import minibatcher.views.widget as w, minibatcher.views.html, minibatcher.views.predict\n"
        "from minibatcher.trace import Trace\n"
        "w.Timeline(Trace())._repr_mimebundle_()\n"
        "bad = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- live -------------------------------------------------------------------------------------------------------------


class Recorded(Live):
    """Keeps its messages; its clock is set by hand."""

    def __init__(self, trace: Trace) -> None:
        self.messages: list[dict] = []
        super().__init__(trace)

    def send(self, content, buffers=None):
        self.messages.append(content)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        time = 100.0

    monkeypatch.setattr(widget.time, "monotonic", lambda: Clock.time)
    return Clock


def test_live_sends_only_what_is_new_and_at_most_thirty_times_a_second(clock):
    growing = Trace({"stage": "x"})
    shown = Recorded(growing)
    for step in range(100):
        growing.append(StepRecord(step))
        clock.time += 0.01
    sent = [(message["at"], len(parsed(message["lines"]))) for message in shown.messages]
    assert len(sent) <= 1 + 100 * 0.01 * 30
    steps = [record.step for message in shown.messages for record in parsed(message["lines"])]
    assert steps == list(range(len(steps))), "in order, each once"
    assert all(len(message["notes"]) == n for message, (_, n) in zip(shown.messages, sent, strict=True))
    assert [at for at, _ in sent] == [sum(n for _, n in sent[:i]) for i in range(len(sent))]


def test_live_stops(clock):
    growing = Trace()
    shown = Recorded(growing)
    growing.append(StepRecord(0))
    shown.stop()
    growing.append(StepRecord(1))
    assert not growing.listeners
    assert len(shown.traces[0]) == 1 and not shown.live
    shown.stop()  # once is enough


def test_live_follows_an_engine_into_its_next_run():
    runs = engine("iteration")
    first = runs.run([request("a")])
    shown = Live(runs.trace)
    assert shown.traces[0].records == first.records
    second = runs.run([request("b")])
    assert shown.traces[0].records == second.records, "the steps of the run before are gone"
    assert shown.traces[0] is not second, "the engine's trace is not the widget's"
    shown.stop()


def test_live_goes_on_with_a_trace_that_has_begun():
    growing = Trace({}, [StepRecord(0)])
    shown = Live(growing)
    growing.append(StepRecord(1))
    growing.append(StepRecord(2))
    assert [record.step for record in shown.traces[0]] == [0, 1, 2]


def test_live_outside_of_a_notebook():
    growing = Trace()
    shown = live(growing)
    growing.append(StepRecord(0))
    shown.stop()
    assert len(shown.traces[0]) == 1


# -- predict, lock, reveal --------------------------------------------------------------------------------------------


def parts(question: Predict) -> list[ipywidgets.Widget]:
    _, answer, note, _ = question.widget.children
    field, _, button = answer.children
    return [field, button, note]


def test_a_number_is_predicted_locked_and_revealed(capsys):
    guesses = []
    question = Predict("How many?", guesses.append, unit="steps", answer=31)
    field, button, note = parts(question)
    button.click()
    assert "no number" in note.value and not guesses
    field.value = "12,5"
    button.click()
    assert guesses == [12.5] and question.locked and field.disabled and button.disabled
    assert note.value == "You said: <b>12.5 steps</b>. It is: <b>31 steps</b>."
    question.reset()
    assert not question.locked and not field.disabled and field.value == ""


def test_a_choice_is_predicted_locked_and_revealed():
    guesses = []
    question = Predict("Does it?", guesses.append, choices=["yes", "no <&>"])
    field, button, note = parts(question)
    button.click()
    assert "Choose" in note.value and not guesses
    field.value = "no <&>"
    button.click()
    assert guesses == ["no <&>"] and note.value == "You said: <b>no &lt;&amp;&gt;</b>."
    question.reset()
    assert field.value is None


# -- a whole notebook, run by a program -------------------------------------------------------------------------------

CELLS = [
    "from minibatcher.trace import StepRecord, Trace, Work\n"
    "from minibatcher.views.predict import Predict\n"
    "from minibatcher.views.widget import live\n"
    "trace = Trace()\n"
    "live(trace)\n"
    "for step in range(3):\n"
    "    trace.append(StepRecord(step, step, step + 1.0, work=[Work('a', 0, 'decode', 1, step)]))",
    "Predict('How many?', lambda guess: f'revealed to {guess}', answer=3)",
    "trace.listeners",
]


def test_headless_execution_shows_the_revealed_state_and_the_picture():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60).execute()
    (shown,), predicted, (listeners,) = (cell.outputs for cell in notebook.cells)
    assert b64decode(shown["data"]["image/png"]).startswith(b"\x89PNG")
    assert "It is: <b>3</b>." in predicted[0]["data"]["text/html"]
    assert predicted[1]["data"]["text/plain"] == "'revealed to None'"
    assert listeners["data"]["text/plain"] == "[]", "the cell has ended, and nobody listens"


# -- the page ---------------------------------------------------------------------------------------------------------


def test_a_page_needs_nothing_else(tmp_path):
    hostile = trace()
    hostile.meta["stage"] = "</script><script>alert(1)</script>"
    page = to_html(hostile, tmp_path / "page.html", picked="</script>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "alert(1)</script>" not in page
    assert page.count("</script>") == 1
    assert not any(word in page for word in ("http://", "https://", " src=", "@import", "url("))
