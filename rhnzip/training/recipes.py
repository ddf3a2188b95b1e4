"""Recipes of the papers, by name: sizes of the network and how it was trained.

All keep the 256 bytes as their vocabulary, so that what they train can code; the papers count 205 symbols in
enwik8, 27 in text8, 50 in Penn Treebank. [paper] and [repository] say where two sources differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rhnzip.training.recipe import Recipe


@dataclass(frozen=True)
class Preset:
    """A published training run.

    Attributes:
        network: settings of the cell's configuration, `cell` among them.
        recipe: how it is trained.
        description: one line for the command's help and the documentation.
    """

    network: Mapping[str, Any]
    recipe: Recipe
    description: str


EPOCH_ENWIK8 = 90_000_000
EPOCH_PTB = 5_100_000

_ZILLY = Recipe(
    optimizer="sgd",
    rate=0.2,
    schedule="zilly",
    decay=1.03,
    decay_after=5,
    total_bytes=500 * EPOCH_ENWIK8,
    lanes=128,
    segment=50,
    clip=10.0,
    weight_decay=1e-7,
    drop_symbol=0.1,
    drop_input=0.4,
    drop_hidden=0.1,
    drop_output=0.4,
    reset=0.0,
)
"""Zilly et al. 2017 on enwik8 and text8; stops after 500 epochs of 90 MB at the latest."""

_SUAREZ = Recipe(
    rate=1e-3,
    warmup=0.0,
    final_rate=1.0,
    total_bytes=100 * EPOCH_PTB,
    lanes=256,
    segment=100,
    clip=10.0,
    drop_gate=0.35,
    reset=0.0,
)
"""Suarez 2017 on Penn Treebank: Adam at one rate. The repository clips the L1 norm at 10; here it is L2."""

_MUJIKA_ENWIK8 = Recipe(
    rate=1e-3,
    warmup=0.0,
    total_bytes=35 * EPOCH_ENWIK8,
    lanes=128,
    segment=100,
    clip=1.0,
    drop_input=0.25,
    drop_hidden=0.25,
    drop_output=0.25,
    reset=0.0,
)
"""Mujika et al. 2017 on enwik8. The repository divides the rate by 10 when validation stalls twice and draws
dropout anew at each step; here the rate follows a cosine and one mask serves a segment."""

_MUJIKA_PTB = dataclasses.replace(
    _MUJIKA_ENWIK8,
    rate=2e-3,
    total_bytes=200 * EPOCH_PTB,
    segment=150,
    drop_input=0.35,
    drop_hidden=0.35,
    drop_output=0.35,
)

_MUJIKA_COMPARISON = Recipe(
    rate=1e-3, warmup=0.0, total_bytes=20 * EPOCH_ENWIK8, lanes=128, segment=100, clip=1.0, reset=0.0
)
"""Mujika et al. 2017, section 5: 20 epochs of enwik8 without regularisation."""

_SHOHAM = dataclasses.replace(
    _ZILLY,
    decay=1.02,
    decay_after=20,
    total_bytes=300 * EPOCH_PTB,
    lanes=20,
    segment=35,
    drop_symbol=0.25,
    drop_input=0.75,
    drop_hidden=0.25,
    drop_output=0.75,
)
"""Shoham & Permuter 2018 on the words of Penn Treebank, with what Zilly et al. 2017 take there; on bytes its
dropout is far too strong: lower it."""

_ZONEOUT_ENWIK8 = {"keep_hidden": 0.95, "keep_cell": 0.7}
_ZONEOUT_PTB = {"keep_hidden": 0.9, "keep_cell": 0.5}
_FS_ENWIK8 = {"cell": "fsrnn", "slow_units": 1500, **_ZONEOUT_ENWIK8}
_FS_PTB = {"cell": "fsrnn", "slow_units": 400, "embedding": 128, **_ZONEOUT_PTB}


def _rhn(units: int, depth: int) -> dict[str, Any]:
    return {"cell": "rhn", "units": units, "depth": depth, "gate_bias": -4.0, "init_range": 0.04}


def _preset(network: dict[str, Any], recipe: Recipe, description: str) -> Preset:
    return Preset(MappingProxyType(network), recipe, description)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "zilly-enwik8": _preset(
            _rhn(1500, 10), _ZILLY, "Zilly et al. 2017, RHN on enwik8: 46 million parameters, 1.27 BPC"
        ),
        "zilly-enwik8-21m": _preset(_rhn(1000, 10), _ZILLY, "the same, 21 million: 1.30 BPC"),
        "zilly-enwik8-23m": _preset(_rhn(1500, 5), _ZILLY, "the same, depth 5, 23 million: 1.31 BPC"),
        "suarez-ptb": _preset(
            {"cell": "hyper_rhn", "units": 1000, "depth": 7},
            _SUAREZ,
            "Suarez 2017, HyperRHN on Penn Treebank: 15 million, 1.19 BPC (repository 1.195)",
        ),
        "suarez-ptb-rhn": _preset(
            {"cell": "rhn", "units": 1000, "depth": 7, "embedding": 27},
            dataclasses.replace(_SUAREZ, drop_gate=0.0),
            "Suarez 2017, RHN on Penn Treebank: 14 million, 1.24 BPC",
        ),
        "mujika-enwik8-fs2": _preset(
            {**_FS_ENWIK8, "fast_units": 900},
            _MUJIKA_ENWIK8,
            "Mujika et al. 2017, FS-LSTM-2: 27 million, 1.290",
        ),
        "mujika-enwik8-fs4": _preset(
            {**_FS_ENWIK8, "fast_units": 730, "fast_cells": 4}, _MUJIKA_ENWIK8, "FS-LSTM-4: 27 million, 1.277"
        ),
        "mujika-enwik8-fs4-large": _preset(
            {**_FS_ENWIK8, "fast_units": 1200, "fast_cells": 4},
            _MUJIKA_ENWIK8,
            "large FS-LSTM-4: 47 million, 1.245; two of them averaged: 1.198",
        ),
        "mujika-ptb-fs2": _preset(
            {**_FS_PTB, "fast_units": 700}, _MUJIKA_PTB, "FS-LSTM-2 on Penn Treebank: 7.2 million, 1.190"
        ),
        "mujika-ptb-fs4": _preset(
            {**_FS_PTB, "fast_units": 500, "fast_cells": 4},
            _MUJIKA_PTB,
            "FS-LSTM-4 on Penn Treebank: 6.5 million, 1.193",
        ),
        "mujika-comparison-fs": _preset(
            {"cell": "fsrnn", "fast_units": 450, "slow_units": 450, "fast_cells": 4},
            _MUJIKA_COMPARISON,
            "20 epochs of enwik8, FS-LSTM-4: 1.49 BPC",
        ),
        "mujika-comparison-stacked": _preset(
            {"cell": "lstm", "units": 375, "layers": 5},
            _MUJIKA_COMPARISON,
            "20 epochs of enwik8, stacked LSTM: 1.61 BPC",
        ),
        "mujika-comparison-sequential": _preset(
            {"cell": "lstm", "units": 500, "layers": 5, "sequential": True},
            _MUJIKA_COMPARISON,
            "20 epochs of enwik8, sequential LSTM: 1.58 BPC",
        ),
        **{
            f"shoham-ptb-{depth}": _preset(
                {"cell": "hsg", "units": 830, "depth": depth, "gate_bias": -2.5, "init_range": 0.04},
                _SHOHAM,
                f"Shoham & Permuter 2018, RHN of depth {depth} with state gate, for words in the paper",
            )
            for depth in (10, 20, 30, 40)
        },
    }
)
