"""Predict, lock, reveal: a reader commits to an answer before the run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display


class Predict:
    """A question; what it reveals is computed when the reader has locked an answer.

        Predict("How many steps do these eight requests take?", lambda guess: draw(run()), unit="steps", answer=31)

    question: HTML. reveal: called with the guess; what it prints and returns is shown below. choices: the answers to
    choose from; without them a number is asked for. answer: the right one, if it is known beforehand. Where no reader
    is there, the run of a whole notebook by a program, the answer is revealed at once, with None for a guess.
    """

    def __init__(
        self,
        question: str,
        reveal: Callable[[float | str | None], Any],
        *,
        choices: Sequence[str] = (),
        unit: str = "",
        answer: float | str | None = None,
    ) -> None:
        self.question = question
        self.unit = unit
        self.answer = answer
        self.guess: float | str | None = None
        self.locked = False
        self._reveal = reveal
        self._choosing = bool(choices)
        if choices:
            self._field = ipywidgets.RadioButtons(options=list(choices), value=None, layout={"width": "max-content"})
        else:
            self._field = ipywidgets.Text(placeholder="a number", layout={"width": "9em"})
        self._button = ipywidgets.Button(description="Lock", tooltip="Lock your answer; then it is revealed")
        self._button.on_click(self._lock_field)
        self._note = ipywidgets.HTML()
        self._output = ipywidgets.Output()
        row = [self._field, ipywidgets.Label(unit), self._button]
        self.widget = ipywidgets.VBox(  # for a layout of one's own; a notebook shows it by itself
            [
                ipywidgets.HTML(f"<b>Predict.</b> {question}"),
                ipywidgets.Box(row, layout={"align_items": "center", "flex_flow": "row wrap"}),
                self._note,
                self._output,
            ]
        )

    def lock(self, guess: float | str) -> None:
        """What the button does."""
        self.guess, self.locked = guess, True
        self._field.disabled = self._button.disabled = True
        self._note.value = self._said()
        with self._output:
            self._show()

    def reset(self) -> None:
        """For the next reader."""
        self.guess, self.locked = None, False
        self._field.value = None if self._choosing else ""
        self._field.disabled = self._button.disabled = False
        self._note.value = ""
        self._output.outputs = ()

    def _lock_field(self, _: Any) -> None:
        guess = self._field.value
        if guess is None:
            self._note.value = "Choose an answer, then lock it."
            return
        if not self._choosing:
            try:
                guess = float(guess.replace(",", "."))
            except ValueError:
                self._note.value = f"{escape(repr(guess))} is no number: type one, then lock it."
                return
        self.lock(guess)

    def _said(self) -> str:
        def told(value: float | str) -> str:
            return escape(value if isinstance(value, str) else f"{value:,.10g} {self.unit}".strip())

        said = [] if self.guess is None else [f"You said: <b>{told(self.guess)}</b>."]
        return " ".join(said + ([] if self.answer is None else [f"It is: <b>{told(self.answer)}</b>."]))

    def _show(self) -> None:
        shown = self._reveal(self.guess)
        if shown is not None:
            display(shown)

    def _ipython_display_(self) -> None:
        if _reader_is_there():
            display(self.widget)
        else:
            display(HTML(f"<b>Predict.</b> {self.question}<br>{self._said()}"))
            self._show()


def _reader_is_there() -> bool:
    """JupyterLab, VS Code and Colab name the cell in what they ask the kernel; nbclient and its like do not."""
    kernel = getattr(get_ipython(), "kernel", None)
    metadata = kernel.get_parent().get("metadata", {}) if kernel else {}
    return "cellId" in metadata or "colab" in metadata
