"""What the benchmarks share: the machine's description, tables, pictures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """Processor, cores this process may use, versions."""
    import numba
    import numpy
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numba {numba.__version__}"
    return f"{cores} cores of {model}; {versions}, numpy {numpy.__version__}"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers flush right."""

    def text(value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "NO"
        if isinstance(value, int):
            return f"{value:,}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(header))]
    cells = [list(header), *([text(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|"
        + "|".join("-" * (w + 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True))
        + "|"
    )
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def write(name: str, text: str, data: Any) -> None:
    """Print a result and keep it as Markdown and JSON."""
    RESULTS.mkdir(exist_ok=True)
    print(text)
    (RESULTS / f"{name}.md").write_text(text + "\n")
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
