"""Ensembles: the mean of several models' probabilities, exactly; every member learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import rhnzip
from rhnzip.coding.predictor import MeanPredictor
from rhnzip.errors import UnknownModelError
from rhnzip.models.ensemble import Ensemble
from rhnzip.models.library import load
from rhnzip.models.modelfile import save_model
from rhnzip.models.scratch import scratch_model

TOTAL = (1 << 24) - 256
TEXT = b"Two heads are better than one; and two networks, if they err in different places. " * 12
PAIR = "scratch:1x16+scratch:2x24:7"


class Fixed:
    """Counts that are given."""

    def __init__(self, counts: NDArray[np.float32]) -> None:
        self.given, self.told = counts, np.zeros(0, np.int32)

    def counts(self) -> NDArray[np.float32]:
        return self.given

    def update(self, symbols: NDArray[np.int32]) -> None:
        self.told = symbols


def test_mean_of_counts() -> None:
    rng = np.random.default_rng(1)
    members = []
    for _ in range(3):
        counts = rng.integers(0, TOTAL // 256, (5, 256))
        counts[:, 0] += TOTAL - counts.sum(axis=1)
        members.append(Fixed(counts.astype(np.float32)))
    mean = MeanPredictor(list(members))
    counts = mean.counts()
    assert counts.dtype == np.float32
    assert counts.flags.c_contiguous
    assert (counts.astype(np.int64).sum(axis=1) == TOTAL).all()
    exact = sum(member.given.astype(np.float64) for member in members) / 3
    assert np.abs(counts - exact)[:, 1:].max() < 1
    symbols = np.arange(5, dtype=np.int32)
    mean.update(symbols)
    assert all(member.told is symbols for member in members)


@pytest.mark.parametrize("preset", ["default", "best"])
def test_round_trip_by_name_alone(preset: str) -> None:
    packed = rhnzip.compress(TEXT, model=PAIR, preset=preset)
    assert rhnzip.decompress(packed) == TEXT
    assert rhnzip.decompress(packed, backend="reference") == TEXT
    alone = [len(rhnzip.compress(TEXT, model=name, preset=preset)) for name in PAIR.split("+")]
    assert len(packed) < max(alone)


def test_files(tmp_path: Path) -> None:
    paths = []
    for name in ("scratch:1x16", "scratch:1x16:1"):
        paths.append(tmp_path / f"{name[-1]}.safetensors")
        model = replace(scratch_model(name), name=paths[-1].stem)
        model.weights.tables["output_bias"][0, list(TEXT)] = 4  # it has seen such letters
        save_model(model, paths[-1])
    both = "+".join(map(str, paths))
    packed = rhnzip.compress(TEXT, model=both, preset="fast", lanes=4, backend="numba")
    assert len(packed) < 0.8 * len(TEXT)
    assert rhnzip.decompress(packed, model=both, backend="reference") == TEXT
    with pytest.raises(UnknownModelError):
        rhnzip.decompress(packed, model="+".join(map(str, reversed(paths))))


def test_names_and_ids() -> None:
    pair = load(PAIR)
    assert isinstance(pair, Ensemble)
    assert pair.name == PAIR
    other = load("+".join(reversed(PAIR.split("+"))))
    assert len({pair.id, other.id, *(member.id for member in pair.members)}) == 4
    with pytest.raises(UnknownModelError, match="nobody"):
        load("scratch:1x16+nobody")
    with pytest.raises(UnknownModelError, match="at most 4"):
        load("+".join(["scratch:1x16"] * 5))
