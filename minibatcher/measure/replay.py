"""Public traces of real services, in their own formats.

Azure LLM inference (Patel et al., "Splitwise", ISCA 2024): CSV with TIMESTAMP, ContextTokens, GeneratedTokens
BurstGPT (Wang et al., 2024): CSV with Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type
Mooncake (Qin et al., FAST'25): JSON Lines with timestamp (ms), input_length, output_length, hash_ids
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from math import isfinite
from os import PathLike
from typing import Any

from minibatcher.measure.workloads import Job

Row = dict[str, Any]
Parsed = tuple[float, int, int]  # seconds, prompt tokens, output tokens


def _azure(row: Row) -> Parsed:
    time = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
    return time, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _burstgpt(row: Row) -> Parsed:
    return float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"])


def _mooncake(row: Row) -> Parsed:
    return float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"])


FORMATS: dict[str, Callable[[Row], Parsed]] = {
    "ContextTokens": _azure,  # a column that only this format has
    "Response tokens": _burstgpt,
    "input_length": _mooncake,
}


def replay(path: str | PathLike[str], limit: int | None = None, scale_time: float = 1.0) -> list[Job]:
    """The requests of a trace in order of arrival, the first at 0 s. The format is told from the first line.

    limit: only the first so many. scale_time: 0.5 lets them arrive twice as fast. BurstGPT counts requests that
    failed as answers of 0 tokens: they are left out. Mooncake's hash_ids say which prompts begin alike; no stage
    makes use of it yet.

    Raises ValueError with the line number for what cannot be read, and for a trace without requests.
    """
    if (limit is not None and limit < 1) or not (scale_time > 0 and isfinite(scale_time)):
        raise ValueError(f"limit={limit}, scale_time={scale_time}: a limit is 1 or more, a scale is above 0")
    parsed: list[Parsed] = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        for number, row in _rows(path, file):
            columns = [column for column in FORMATS if column in row]
            if not columns:
                raise ValueError(
                    f"{path}, line {number}: unknown format with the columns {', '.join(map(str, row))}; "
                    "Azure, BurstGPT and Mooncake traces can be read"
                )
            try:
                time, prompt, output = FORMATS[columns[0]](row)
                if prompt < 1 or output < 0 or not isfinite(time):
                    raise ValueError("a prompt has 1 token or more, an answer 0 or more")
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: not a row of this trace ({error!r} in {row})") from None
            if output:
                parsed.append((time, prompt, output))
            if len(parsed) == limit:
                break
    if not parsed:
        raise ValueError(f"{path}: there is no request in this trace")
    parsed.sort(key=lambda row: row[0])
    start = parsed[0][0]
    return [Job(range(prompt), output, (time - start) * scale_time) for time, prompt, output in parsed]


def _rows(path: str | PathLike[str], file: Any) -> Iterator[tuple[int, Row]]:
    """Each row with the number of its line."""
    first = file.readline()
    file.seek(0)
    if first.lstrip().startswith("{"):
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object, but {row!r}")
            yield number, row
        return
    reader = csv.DictReader(file)
    for row in reader:
        yield reader.line_num, row
