"""Float against exact BPC, archive bytes against BPC x length, and equal bytes across threads and backends.

    python benchmarks/bench_exactness.py FILE... [--limit 100000] [--checkpoint CHECKPOINT.pt]

With a checkpoint, float BPC is that of the network as trained, and the exact one that of its quantised form.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import machine, table, write

import rhnzip
from rhnzip.coding import PRESETS, load_model
from rhnzip.exact.backend import get_backend
from rhnzip.models.evaluation import exact_bpc, float_bpc


def across(data: bytes, preset: str, model: str | None) -> tuple[int, list[list[Any]]]:
    """Archives of `data` from every combination, and whether each decodes on the other backend."""
    rows, first = [], b""
    for backend, threads, other in (
        ("numba", 2, "reference"),
        ("numba", 1, "numba"),
        ("reference", 1, "numba"),
    ):
        packed = rhnzip.compress(data, preset=preset, backend=backend, threads=threads, model=model)
        first = first or packed
        back = rhnzip.decompress(packed, backend=other, threads=3 - threads, model=model)
        digest = hashlib.sha256(packed).hexdigest()[:16]
        rows.append([preset, backend, threads, len(packed), digest, packed == first, other, back == data])
    return len(first), rows


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--limit", default=100_000, show_default=True, help="Bytes of the first file coded in every way."
)
@click.option("--preset", "presets", multiple=True, default=tuple(PRESETS), show_default=True)
@click.option("--checkpoint", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", help="Model to use in place of the built-in one.")
def main(
    files: tuple[Path, ...], limit: int, presets: tuple[str, ...], checkpoint: Path | None, model: str | None
) -> None:
    """Print all three tables."""
    loaded = load_model(model)
    backend = get_backend("numba")
    trained = None
    if checkpoint:
        from rhnzip.training.loop import read_checkpoint

        trained = read_checkpoint(checkpoint)["parameters"]
    figures = []
    for file in files:
        text = np.frombuffer(file.read_bytes(), np.uint8)
        exact = exact_bpc(loaded.cell, loaded.weights, text, backend)
        as_float = float_bpc(loaded.cell, trained, text) if trained else None
        archive = len(rhnzip.compress(text.tobytes(), preset="fast", model=model))
        expected = exact * len(text) / 8
        difference = exact - as_float if as_float is not None else None
        figures.append(
            [file.name, len(text), as_float, exact, difference, archive, expected, archive / expected - 1]
        )
    head = [
        "file",
        "bytes",
        "float BPC",
        "exact BPC",
        "difference",
        "archive",
        "exact BPC x length / 8",
        "overhead",
    ]
    same = []
    data = files[0].read_bytes()[:limit]
    for preset in presets:
        same += across(data, preset, model)[1]
    head_same = ["preset", "backend", "threads", "archive", "sha256", "same bytes", "decoded by", "right"]
    text_out = "\n".join(
        [
            f"{machine()}; model {loaded.name}, id {loaded.id.hex()}",
            "",
            "Preset fast. The network is cut into the same lanes for all three figures.",
            "",
            table(head, figures),
            "",
            f"The first {len(data):,} bytes of {files[0].name}, coded in every way:",
            "",
            table(head_same, same),
        ]
    )
    write("exactness", text_out, {"machine": machine(), "bpc": [head, *figures], "same": [head_same, *same]})


if __name__ == "__main__":
    main()
