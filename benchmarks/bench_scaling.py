"""Cost against length: seconds per byte must not grow with the file.

    python benchmarks/bench_scaling.py FILE [--preset default] [--size 100000 --size 1000000 --size 4000000]

FILE should be as long as the largest size. Each figure is of one compression, in a process that has started
already: the start, a second or two, is not counted.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
from common import machine, table, write

import rhnzip


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--preset", "presets", multiple=True, default=("fast", "default"), show_default=True)
@click.option(
    "--size", "sizes", multiple=True, default=(100_000, 1_000_000, 4_000_000), type=int, show_default=True
)
def main(file: Path, presets: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Compress the start of FILE at every size."""
    text = file.read_bytes()
    if len(text) < max(sizes):
        raise click.BadParameter(f"{file} has {len(text):,} bytes, fewer than {max(sizes):,}")
    rhnzip.compress(text[:2000])  # loads the model, compiles
    rows = []
    for preset in presets:
        speeds = []
        for size in sizes:
            start = time.perf_counter()
            packed = len(rhnzip.compress(text[:size], preset=preset))
            speeds.append(size / (time.perf_counter() - start) / 1e3)
            rows.append([preset, size, packed, 8 * packed / size, speeds[-1], speeds[-1] / max(speeds)])
    head = ["preset", "bytes", "archive", "bpc", "KB/s", "of the fastest so far"]
    write(
        "scaling",
        f"{machine()}; {file.name}\n\n{table(head, rows)}",
        {"machine": machine(), "rows": [head, *rows]},
    )


if __name__ == "__main__":
    main()
