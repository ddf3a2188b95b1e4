"""Recipes of the papers, by name: sizes of the network and how it was trained."""

from __future__ import annotations

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


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # The paper's code maps bytes to 0..204; here all 256 are kept. It stops after 500 epochs of 90 MB.
        "zilly-enwik8": Preset(
            network=MappingProxyType(
                {
                    "cell": "rhn",
                    "units": 1500,
                    "depth": 10,
                    "embedding": 256,
                    "gate_bias": -4.0,
                    "init_range": 0.04,
                }
            ),
            recipe=Recipe(
                optimizer="sgd",
                rate=0.2,
                schedule="zilly",
                decay=1.03,
                decay_after=5,
                total_bytes=500 * 90_000_000,
                lanes=128,
                segment=50,
                clip=10.0,
                weight_decay=1e-7,
                drop_symbol=0.1,
                drop_input=0.4,
                drop_hidden=0.1,
                drop_output=0.4,
                reset=0.0,
            ),
            description="the large network of Zilly et al. 2017 on enwik8, 46 million parameters",
        )
    }
)
