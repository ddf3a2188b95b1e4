"""Every truncation and changes of every byte of small archives: an error or the original, nothing else.

    python benchmarks/bench_hostile.py

Also what random bytes, one byte and no bytes grow to.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import click
from common import machine, table, write

import rhnzip
from rhnzip.coding import PRESETS

TEXT = (
    b"<page>\n  <title>Range coder</title>\n  <text>A range coder narrows an interval by each symbol's "
    b"share; "
    b"what is left at the end names the message.</text>\n</page>\n"
)


def outcome(archive: bytes, original: bytes, model: str | None) -> str:
    """What decompressing gives."""
    try:
        data = rhnzip.decompress(archive, model=model)
    except rhnzip.RhnzipError as error:
        return type(error).__name__
    return "the original" if data == original else "WRONG BYTES"


@click.command()
@click.option("--model", help="Model to use in place of the built-in one.")
def main(model: str | None) -> None:
    """Try them all."""
    rows: list[list[Any]] = []
    for preset in PRESETS:
        archive = rhnzip.compress(TEXT, preset=preset, model=model)
        # learning is slow to undo: every bit alone there, and every other value of every byte where it is not
        changes = range(1, 256) if preset == "fast" else [1 << bit for bit in range(8)]
        damages = {
            "cut short": (archive[:size] for size in range(len(archive))),
            "one byte changed": (
                archive[:at] + bytes([archive[at] ^ change]) + archive[at + 1 :]
                for at in range(len(archive))
                for change in changes
            ),
            "one byte added": (archive + bytes([byte]) for byte in range(256)),
        }
        for damage, archives in damages.items():
            outcomes = Counter(outcome(damaged, TEXT, model) for damaged in archives)
            told = ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items()))
            rows.append([preset, len(archive), damage, outcomes.total(), told, outcomes["WRONG BYTES"]])
    growth: list[list[Any]] = []
    noise = random.Random(1).randbytes(100_000)
    for name, data in (("no bytes", b""), ("one byte", b"x"), ("100 kB of random bytes", noise)):
        for preset in PRESETS:
            packed = rhnzip.compress(data, preset=preset, model=model)
            same = rhnzip.decompress(packed, model=model) == data
            growth.append([name, preset, len(data), len(packed), len(packed) - len(data), same])
    head = ["preset", "archive", "damage", "tries", "outcomes", "wrong bytes"]
    head_growth = ["data", "preset", "bytes", "archive", "growth", "same bytes"]
    text = "\n".join([machine(), "", table(head, rows), "", table(head_growth, growth)])
    write("hostile", text, {"machine": machine(), "damage": [head, *rows], "growth": [head_growth, *growth]})


if __name__ == "__main__":
    main()
