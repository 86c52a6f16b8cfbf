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
{timeline_css}
</style>
</head>
<body>
<noscript>{alt}</noscript>
<div id="timeline"></div>
<script type="module">
{timeline_js}
const bytes = Uint8Array.from(atob("{packed}"), (character) => character.charCodeAt(0));
const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
mount(document.getElementById("timeline"), await new Response(unpacked).json(), {ui});
</script>
</body>
</html>
"""


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
    page = PAGE.format(
        title=escape(data["traces"][0]["title"]),
        alt=escape(" ".join(trace["alt"] for trace in data["traces"])),
        timeline_css=TIMELINE_CSS.read_text(encoding="utf-8"),
        timeline_js=TIMELINE_JS.read_text(encoding="utf-8"),
        packed=b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode(),
        ui=json.dumps(ui).replace("<", "\\u003c"),
    )
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page
