"""The papers' networks beside each other.

    python benchmarks/bench_networks.py speed
    python benchmarks/bench_networks.py train TRAIN VALID TEST [--minutes 10] [--only lstm]

`speed` takes every published network at its size, with random weights, and times a frozen step beside its own
int8 products. `train` trains small networks of about one size on one text, each for the same time, and gives
bits per byte of another. The rates that suit them differ by a factor of four and would decide the order, so
each network tries all for a twelfth of the time and takes the best by VALID, then begins anew.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from bench_steps import median_of, products_time
from common import machine, table, write

from rhnzip.coding.codec import FROZEN_GROUP
from rhnzip.coding.predictor import FrozenPredictor, lane_groups
from rhnzip.coding.workers import Workers
from rhnzip.exact.backend import get_backend
from rhnzip.models.cell import parameter_count
from rhnzip.models.evaluation import exact_bpc, float_bpc
from rhnzip.models.modelfile import Model
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.registry import make_cell
from rhnzip.training.data import Mix, load_text
from rhnzip.training.loop import Trainer
from rhnzip.training.recipe import Recipe
from rhnzip.training.recipes import PRESETS

PUBLISHED = {
    "zilly-enwik8": "1.27",
    "zilly-enwik8-21m": "1.30",
    "zilly-enwik8-23m": "1.31",
    "suarez-ptb": "1.19 (PTB)",
    "suarez-ptb-rhn": "1.24 (PTB)",
    "mujika-enwik8-fs2": "1.290",
    "mujika-enwik8-fs4": "1.277",
    "mujika-enwik8-fs4-large": "1.245",
    "mujika-ptb-fs2": "1.190 (PTB)",
    "mujika-ptb-fs4": "1.193 (PTB)",
    "shoham-ptb-10": "–",
}
"""BPC by paper, on enwik8 unless it says otherwise."""

SMALL: dict[str, dict[str, Any]] = {
    "LSTM, 1 layer": {"cell": "lstm", "units": 416},
    "LSTM, stacked": {"cell": "lstm", "units": 212, "layers": 3},
    "LSTM, sequential": {"cell": "lstm", "units": 244, "layers": 4, "sequential": True},
    "FS-LSTM-2": {"cell": "fsrnn", "fast_units": 220, "slow_units": 220},
    "FS-LSTM-4": {"cell": "fsrnn", "fast_units": 196, "slow_units": 150, "fast_cells": 4},
    "RHN, depth 4": {"cell": "rhn", "units": 320, "depth": 4},
    "RHN, depth 8": {"cell": "rhn", "units": 232, "depth": 8},
    "HSG, depth 4": {"cell": "hsg", "units": 288, "depth": 4},
    "HSG, depth 8": {"cell": "hsg", "units": 220, "depth": 8},
    "HyperRHN, depth 4": {"cell": "hyper_rhn", "units": 280, "depth": 4, "hyper_units": 64},
}
"""About a million parameters each, embedding of 64."""


@click.group()
def cli() -> None:
    """The papers' networks beside each other."""


@cli.command()
@click.option("--threads", default=2, show_default=True)
@click.option("--lanes", default=128, show_default=True)
def speed(threads: int, lanes: int) -> None:
    """Time a frozen step of every published network."""
    rows = []
    for name, published in PUBLISHED.items():
        cell = make_cell(dict(PRESETS[name].network))
        weights = exact_weights(
            cell, cell.initial(torch.Generator().manual_seed(1)), np.zeros(9999, np.uint8)
        )
        model = Model(name, cell, weights)
        backend = get_backend("numba", general=cell.general)
        with Workers(threads) as workers:
            parts = lane_groups(lanes, threads, FROZEN_GROUP)
            predictor = FrozenPredictor(cell, backend.prepare(weights), parts, workers.run)
            symbols = np.full(lanes, 101, np.int32)

            def step(predictor: FrozenPredictor = predictor, symbols: Any = symbols) -> None:
                predictor.counts()
                predictor.update(symbols)

            whole, products = median_of(step), products_time(model, lanes, workers, FROZEN_GROUP)
        rows.append(
            [name, published, parameter_count(cell), whole * 1e3, products * 1e3, whole / products]
            + [lanes / whole / 1e3]
        )
    head = ["recipe", "published BPC", "parameters", "step ms", "products ms", "step / products", "KB/s"]
    text = f"{machine()}; {threads} threads, {lanes} lanes, random weights\n\n{table(head, rows)}"
    write("networks_speed", text, {"machine": machine(), "rows": [head, *rows]})


@cli.command()
@click.argument("texts", nargs=3, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--minutes", default=10.0, show_default=True, help="Training time of each network.")
@click.option("--only", multiple=True, type=click.Choice(list(SMALL)), help="Train this one; repeatable.")
@click.option("--megabytes", type=float, help="Train each on so much text instead of for a time.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rate", "rates", multiple=True, default=[1e-3, 2e-3, 4e-3, 8e-3], show_default=True)
def train(
    texts: tuple[Path, Path, Path],
    minutes: float,
    megabytes: float | None,
    only: tuple[str, ...],
    threads: int,
    rates: tuple[float, ...],
) -> None:
    """Train every small network for the same time, and measure it."""
    torch.set_num_threads(threads)
    text, valid, test = (load_text(path) for path in texts)
    rows = []
    for name, config in SMALL.items():
        if only and name not in only:
            continue
        cell = make_cell(config | {"embedding": 64})
        budget = int(megabytes * 1e6 if megabytes else _bytes_per_second(cell, text) * 60 * minutes)
        tried = {}
        for rate in rates if len(rates) > 1 else ():
            parameters = _train(cell, text, valid, rate, budget // 12, name).parameters
            tried[rate] = float_bpc(cell, parameters, valid[: 1 << 17])
            print(f"{name}: rate {rate:g}: {tried[rate]:.4f} on {texts[1].name}", flush=True)
        rate = min(tried, key=lambda each: tried[each]) if tried else rates[0]
        start = time.perf_counter()
        trainer = _train(cell, text, valid, rate, budget, name)
        seconds = time.perf_counter() - start
        parameters = {key: value.detach() for key, value in trainer.parameters.items()}
        weights = exact_weights(cell, parameters, text[: 1 << 16])
        backend = get_backend("numba", general=cell.general)
        as_float, exact = float_bpc(cell, parameters, test), exact_bpc(cell, weights, test, backend)
        rows.append([name, parameter_count(cell), rate, trainer.bytes_done, seconds / 60, as_float, exact])
        head = ["network", "parameters", "rate", "bytes trained", "minutes", "test BPC, float", "exact"]
        each = f"{megabytes:g} MB" if megabytes else f"{minutes:g} minutes"
        title = (
            f"{machine()}; {threads} threads\n\n{texts[0].name}, {len(text):,} bytes: {each} each, "
            f"rate the best of {', '.join(f'{rate:g}' for rate in rates)} by {texts[1].name}"
        )
        write("networks", f"{title}\n\n{table(head, rows)}", {"machine": machine(), "rows": [head, *rows]})


def _train(cell: Any, text: Any, valid: Any, rate: float, total_bytes: int, name: str) -> Trainer:
    recipe = Recipe(rate=rate, lanes=32, segment=50, weight_decay=0.05, total_bytes=total_bytes)
    trainer = Trainer(cell, recipe, Mix(text, {"valid": valid}, ()))
    with tempfile.TemporaryDirectory() as folder:
        trainer.run(Path(folder), functools.partial(print, name, flush=True), save_every_seconds=1e9)
    return trainer


def _bytes_per_second(cell: Any, text: Any) -> float:
    trainer = Trainer(cell, Recipe(lanes=32, segment=50, rate=1e-6), Mix(text, {}, ()))
    for _ in range(3):
        trainer.train_segment()
    return 1600 / median_of(trainer.train_segment, 5.0)


if __name__ == "__main__":
    cli()
