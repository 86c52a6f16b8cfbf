"""Lecture demos, each prepared and opened by name: a question, at most two controls, and what the engine makes of it.

    scene("slow-guest")
    scene("slow-guest", lanes=4, outputs="40,4,4,4", projector=True)

The schedulers are the real ones, on a modelled GPU: times are modelled, unless a scene measures this machine.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from minibatcher.trace import Trace
from minibatcher.views import html
from minibatcher.views.frame import Frame
from minibatcher.views.predict import Predict
from minibatcher.views.scripts import HERE, SCENES, Script, measured
from minibatcher.views.widget import Timeline


def scene(name: str, *, projector: bool = False, **values: Any) -> Scene:
    """Open a scene. values: of its controls. projector: letters of 18 points, for a screen of 1280 x 720.

    Raises ValueError, naming what is allowed, for a name, a control or a value that there is not.
    """
    if name not in SCENES:
        raise ValueError(f"unknown scene {name!r}: choose from {', '.join(SCENES)}")
    return Scene(name, SCENES[name], values, projector)


class Scene(Frame):
    """The answer and the picture stay hidden until a prediction is locked, or Reveal is pressed."""

    def __init__(self, name: str, script: Script, values: Mapping[str, Any], projector: bool) -> None:
        self.name = name
        self.script = script
        self.revealed = False
        self._story, self._answer, self._address, self._notes = (ipywidgets.HTML() for _ in range(4))
        self._timeline: Timeline | None = None
        self._image = ipywidgets.Image(format="png")
        self.predict = Predict(script.question, lambda _: self.reveal(), choices=script.choices, unit=script.unit)
        button = ipywidgets.Button(description="Reveal", tooltip="Without a prediction", layout={"width": "auto"})
        button.on_click(lambda _: self.reveal())
        super().__init__(script.title, script.controls(), values, buttons=[button], projector=projector)
        notes = ipywidgets.Accordion([self._notes], selected_index=None, titles=["Speaker notes (with the answer)"])
        self.below.children = [notes, self._address]
        self.play()

    @property
    def address(self) -> str:
        """The line of Python that opens this scene as it stands."""
        return self.line("scene", f'"{self.name}"')

    @property
    def traces(self) -> list[Trace]:
        return self.played.traces

    def play(self) -> None:
        if self.values.get("machine") == HERE and not measured.cache_info().currsize:
            self.say("Measuring this machine: batches of 1, 4, 16 and 64. It takes a minute, or less.")
        self.played = self.script.play(**self.values)
        self.say("")
        self._story.value = f"<p>{self.played.story}</p>"
        self._notes.value = f"<ul>{''.join(f'<li>{note}</li>' for note in self.played.notes)}</ul>"
        self._address.value = f"<p>This scene again: <code>{escape(self.address)}</code></p>"
        self._answer.value = self.played.answer
        self._lay()

    def reveal(self) -> None:
        self.revealed = True
        self._lay()

    def reset(self) -> None:
        self.revealed = False
        self.predict.reset()
        super().reset()

    def _lay(self) -> None:
        alone = self.revealed and self.projector  # the picture needs the room
        self.above.children = [] if alone else [self._story, self.predict.widget]
        self.stage.children = [self._answer, self._picture()] if self.revealed else []

    def shown(self) -> Iterable[Any]:
        self.reveal()
        picture = self.played.picture(8) if self.played.picture else self._picture().picture()
        return [self._words(), self.played.answer, picture, self._after()]

    def to_html(self, path: str | Path) -> str:
        """Write the scene, as it stands, into a page that needs nothing else; the answer unfolds. Returns the page."""
        inside = f"""<main class="scene">{self._words()}
<details><summary>Reveal</summary>{self.played.answer}{{picture}}{self._after()}</details></main>"""
        if self.played.picture:
            png = b64encode(self.played.picture(8)._repr_png_()).decode()
            alt = "The figures of the table above, as curves"
            picture = f'<img alt="{alt}" src="data:image/png;base64,{png}">'
            page = html.page(self.title, STYLE, inside.replace("{picture}", picture))
        else:
            place, (trace, *against) = '<div id="timeline"></div>', self.traces
            look: dict[str, Any] = {**self.played.look, "x": self._picture().x, "font": self.font}
            page = html.to_html(trace, against=against[0] if against else None, **look)
            page = page.replace("</style>", STYLE + "</style>", 1)
            page = page.replace(place, inside.replace("{picture}", place), 1)
        Path(path).write_text(page, encoding="utf-8")
        return page

    def _words(self) -> str:
        question = f"<p><b>Predict.</b> {self.script.question}</p>"
        return f"<h3>{self.title}</h3><p>{self.played.story}</p>{question}"

    def _after(self) -> str:
        return f"<p>Notes:</p>{self._notes.value}{self._address.value}"

    def _picture(self) -> Any:
        if self.played.picture:
            self._image.value = self.played.picture(12 if self.projector else 8)._repr_png_()
            return self._image
        if self._timeline is None:
            self._timeline = Timeline(*self.traces, font=self.font, **self.played.look)
            if "x" in self.controls:  # the picture has the same switch
                ipywidgets.link((self._timeline, "x"), (self.controls["x"], "value"))
        elif self._timeline.traces != self.traces:
            self._timeline.traces = self.traces
        self._timeline.font = self.font
        self._timeline.strips = not self.projector or len(self.traces) == 1  # of two, the rows are to fit on the screen
        return self._timeline


STYLE = """
.scene { font: 16px/1.45 system-ui, sans-serif; padding: .6em; max-width: 1280px; margin: auto; }
.scene img { width: 100%; }
.scene > details > summary { cursor: pointer; font-weight: 600; padding: .5em 0; }
.scene :is(td, th) { text-align: right; padding: .1em 1em .1em 0; }
.scene :is(td, th):first-child { text-align: left; }
"""
