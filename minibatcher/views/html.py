"""A trace as one page to open in a browser: nothing else is needed, no server and no network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path

from minibatcher.trace import Trace
from minibatcher.views.feed import TIMELINE_CSS, TIMELINE_JS, feed

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; }}
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
TIMELINE = """<noscript>{alt}</noscript>
<div id="timeline"></div>
<script type="module">
{timeline_js}
const bytes = Uint8Array.from(atob("{packed}"), (character) => character.charCodeAt(0));
const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
mount(document.getElementById("timeline"), await new Response(unpacked).json(), {ui});
</script>"""


def page(title: str, style: str, body: str) -> str:
    """title: a text. style: CSS. body: HTML."""
    return PAGE.format(title=escape(title), style=style, body=body)


def to_html(
    trace: Trace,
    path: str | PathLike[str] | None = None,
    *,
    against: Trace | None = None,
    by: str = "lane",
    x: str = "step",
    cursor: int = 0,
    picked: str | None = None,
    font: str = "",
    parts: Sequence[str] = ("timeline",),
) -> str:
    """The page as a text; also written to `path`, if given.

    against: a second trace of the same workload, to compare with. The rest is how the page opens, as for
    `widget.Timeline`.
    """
    ui = {"by": by, "x": x, "cursor": cursor, "picked": picked, "font": font, "parts": list(parts)}
    data = feed(trace) if against is None else feed(trace, against)
    timeline = TIMELINE.format(
        alt=escape(" ".join(trace["alt"] for trace in data["traces"])),
        timeline_js=TIMELINE_JS.read_text(encoding="utf-8"),
        packed=b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode(),
        ui=json.dumps(ui).replace("<", "\\u003c"),
    )
    whole = page(data["traces"][0]["title"], TIMELINE_CSS.read_text(encoding="utf-8"), timeline)
    if path is not None:
        Path(path).write_text(whole, encoding="utf-8")
    return whole
