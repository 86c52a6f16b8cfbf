"""A trace in a notebook, to scrub through: also live, while an engine runs, and two of them compared.

All are one widget, drawn by timeline.js; they differ in what it is fed. A notebook that was saved shows the same as a
picture (matplotlib is imported for that, and not before).
"""

from __future__ import annotations

import time
from base64 import b64encode
from typing import Any

import anywidget
from IPython.core.getipython import get_ipython
from IPython.display import display
from traitlets import Bool, Enum, Instance, Int, List, Unicode

from minibatcher.trace import StepRecord, Trace
from minibatcher.views.feed import TIMELINE_CSS, TIMELINE_JS, feed, lines, notes
from minibatcher.views.text import describe

INTERVAL_S = 1 / 30  # between two messages to the page


class Timeline(anywidget.AnyWidget):
    """One trace. Its traits may be given by keyword, and set or observed later.

    by: `lane` or `request`, what a row stands for. x: `step` or `time`. cursor: the step that is described; None is
    the last one (with two traces on the time axis: the number of step beginnings to the left). picked: the id of a
    request to point out. font: a CSS size, larger for a projector (`"18pt"`). strips: whether the
    counts stand below the rows. parts: what is unfolded of `timeline`, `table` and `blocks`.
    """

    _esm = TIMELINE_JS
    _css = TIMELINE_CSS

    # timeline.js receives a feed. It is made when it is sent, so a page that is loaded anew gets all steps so far.
    traces = List(Instance(Trace)).tag(sync=True, to_json=lambda traces, _: feed(*traces))
    by = Enum(["lane", "request"], "lane").tag(sync=True)
    x = Enum(["step", "time"], "step").tag(sync=True)
    cursor = Int(0, allow_none=True).tag(sync=True)
    picked = Unicode(None, allow_none=True).tag(sync=True)
    live = Bool(False).tag(sync=True)  # more steps come: the axis leaves room for them
    font = Unicode("").tag(sync=True)
    strips = Bool(True).tag(sync=True)
    parts = List(Unicode(), ["timeline"]).tag(sync=True)

    def __init__(self, *traces: Trace, **traits: Any) -> None:
        if unknown := traits.keys() - set(self.trait_names()):
            raise TypeError(f"unknown: {', '.join(unknown)}; known are by, x, cursor, picked, font, strips and parts")
        super().__init__(traces=list(traces), **traits)

    def picture(self) -> Any:
        """The matplotlib Figure that stands for the widget where nothing runs."""
        from minibatcher.views import figure

        look: Any = {"by": self.by, "x": self.x, "strips": self.strips}
        return figure.draw(*self.traces, **look) if len(self.traces) == 1 else figure.compare(*self.traces, **look)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        data["text/plain"] = "\n".join(map(describe, self.traces))
        if all(any(record.work for record in trace) for trace in self.traces):
            data["image/png"] = b64encode(self.picture()._repr_png_()).decode()
        return data, metadata


class Compare(Timeline):
    """Two traces of one workload, on one scale and with one cursor, and what they differ in."""

    def __init__(self, a: Trace, b: Trace, **traits: Any) -> None:
        super().__init__(a, b, **traits)


class BlockMap(Timeline):
    """The pool at the cursor: who owns which block, and where the blocks of the picked request lie."""

    def __init__(self, trace: Trace, **traits: Any) -> None:
        super().__init__(trace, **({"parts": ["blocks"]} | traits))

    def picture(self) -> Any:
        from minibatcher.views import figure

        return figure.block_map(self.traces[0], -1 if self.cursor is None else self.cursor, self.picked)


class Live(Timeline):
    """Follows an engine's trace until `stop`, keeping steps of its own: a new run leaves this picture as it is."""

    def __init__(self, trace: Trace, **traits: Any) -> None:
        # Steps that are here already belong to this run only if the next one follows them in the same trace.
        self._source: Trace | None = trace
        self._unsent: list[StepRecord] = []
        self._sent_at = 0.0
        self._listeners = trace.listeners
        self._handle: Any = None
        super().__init__(Trace(trace.meta, list(trace.records)), **({"live": True, "cursor": None} | traits))
        self._listeners.append(self._listen)

    def _listen(self, record: StepRecord) -> None:
        if self._source is not None:
            if not (self._source.records and self._source.records[-1] is record):
                self.traces = [Trace(self._source.meta)]
            self._source = None
        self.traces[0].append(record)
        self._unsent.append(record)
        if time.monotonic() - self._sent_at >= INTERVAL_S:
            self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        trace = self.traces[0]
        self.send({"at": len(trace) - len(unsent), "lines": lines(unsent), "notes": notes(trace, unsent)})
        self._sent_at = time.monotonic()

    def stop(self) -> None:
        """The run is over: send what is left, and put the picture into the notebook."""
        if self._listen not in self._listeners:
            return
        self._listeners.remove(self._listen)
        self.live = False
        self.send_state("traces")  # whole, with the final numbers; it also makes good what a slow page has missed
        if self._handle is not None:
            self._handle.update(self)

    def _show(self) -> None:
        shell = get_ipython()
        if shell is None:
            return
        self._handle = display(self, display_id=True)

        def cell_is_over(_: Any) -> None:
            shell.events.unregister("post_run_cell", cell_is_over)
            self.stop()

        shell.events.register("post_run_cell", cell_is_over)


def live(trace: Trace, **traits: Any) -> Live:
    """Show a timeline now, and let it follow what the engine of this trace does until the end of the cell.

        live(llm.trace)
        llm.generate(prompts)

    In a callback, where no cell ends, call `stop()` on what it returns.
    """
    widget = Live(trace, **traits)
    widget._show()
    return widget
