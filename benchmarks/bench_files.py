"""Size, speed, memory and round trip of the command itself, per preset, beside other programs.

    python benchmarks/bench_files.py FILE... [--preset fast --preset default] [--limit 200000]

Every figure is of a whole `rhnzip` process, start included, as a user would time it. The result of each
decompression is compared with the file.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from common import RESULTS, machine, table, write


def run(*arguments: str) -> tuple[float, float]:
    """Run the command; returns (seconds, peak memory in MB)."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "rhnzip", *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"rhnzip {' '.join(arguments)} failed")
    return seconds, usage.ru_maxrss / 1024


def measure(file: Path, preset: str, limit: int | None, extra: list[str], one_way: bool) -> dict[str, Any]:
    """Compress one file with one preset, and unless `one_way` decompress it."""
    data = file.read_bytes()[:limit]
    with tempfile.TemporaryDirectory() as folder:
        raw, packed, back = (Path(folder) / name for name in ("raw", "packed", "back"))
        raw.write_bytes(data)
        options = ["-q", *extra]
        seconds, memory = run("compress", *options, "--preset", preset, "-o", str(packed), str(raw))
        size = packed.stat().st_size
        seconds_back, memory_back, same = None, 0.0, None
        if not one_way:
            seconds_back, memory_back = run("decompress", *options, "-o", str(back), str(packed))
            same = back.read_bytes() == data
        return {
            "file": file.name if limit is None or limit >= file.stat().st_size else f"{file.name}[:{limit}]",
            "preset": preset,
            "bytes": len(data),
            "archive": size,
            "bpc": 8 * size / max(1, len(data)),
            "compress KB/s": len(data) / seconds / 1e3,
            "decompress KB/s": len(data) / seconds_back / 1e3 if seconds_back else None,
            "seconds": seconds,
            "peak MB": max(memory, memory_back),
            "same bytes": same,
        }


def peers() -> list[dict[str, str]]:
    """What other programs made of some of these files (see benchmarks/README.md)."""
    with open(Path(__file__).parent / "peers.csv", newline="") as file:
        return list(csv.DictReader(file))


def picture(results: list[dict[str, Any]], path: Path) -> None:
    """Size against speed, for the first file that other programs were measured on too."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    known = peers()
    names = [name for name in known[0] if name in {Path(r["file"]).stem for r in results}]
    if not names:
        return
    name = names[0]
    figure, axes = plt.subplots(figsize=(8, 5))
    for row in known:
        if row[name]:
            axes.plot(float(row["KB/s"]), int(row[name]), "o", color="0.6")
            label = (float(row["KB/s"]), int(row[name]))
            axes.annotate(
                row["program"], label, fontsize=7, color="0.4", xytext=(4, 3), textcoords="offset points"
            )
    for result in results:
        if Path(result["file"]).stem == name:
            point = (result["compress KB/s"], result["archive"])
            axes.plot(*point, "o", color="C3")
            label = f"rhnzip {result['preset']}"
            axes.annotate(label, point, fontsize=8, color="C3", xytext=(4, 3), textcoords="offset points")
    axes.set(xscale="log", xlabel="KB/s, compressing", ylabel=f"bytes of {name}, compressed")
    axes.set_title("bytes of the archive; programs, models and dictionaries not counted", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--preset", "presets", multiple=True, default=("fast", "default", "best"), show_default=True)
@click.option("--limit", type=int, help="Take only this many bytes of each file.")
@click.option("--one-way", is_flag=True, help="Do not decompress.")
@click.option("--model", help="Model to use in place of the built-in one.")
@click.option("--name", default="files", show_default=True, help="Name of the results.")
def main(
    files: tuple[Path, ...],
    presets: tuple[str, ...],
    limit: int | None,
    one_way: bool,
    model: str | None,
    name: str,
) -> None:
    """Run all presets over all files."""
    extra = ["--model", model] if model else []
    results = []
    for file in files:
        for preset in presets:
            results.append(measure(file, preset, limit, extra, one_way))
            print(results[-1], file=sys.stderr, flush=True)
    shown = [key for key in results[0] if key != "seconds"]
    lines = [
        f"{machine()}",
        "",
        "Bytes of the archive; program and model are not counted. Speeds and memory are of whole processes.",
        "",
        table(shown, [[result[key] for key in shown] for result in results]),
        "",
        "Other programs on the same kind of machine, one core (their programs and dictionaries not counted):",
        "",
    ]
    known = peers()
    lines.append(table(list(known[0]), [[row[key] or None for key in known[0]] for row in known]))
    write(name, "\n".join(lines), {"machine": machine(), "results": results})
    picture(results, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
