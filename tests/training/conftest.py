"""A toy network and a text that it learns within a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rhnzip.models.rhn import RHN, RHNConfig
from rhnzip.training.data import Mix
from rhnzip.training.loop import Trainer
from rhnzip.training.recipe import Recipe

TEXT = b"the quick brown fox jumps over the lazy dog\n" * 300
CONFIG = RHNConfig(units=16, depth=2, embedding=8)
RECIPE = Recipe(lanes=4, segment=16, total_bytes=64 * 40, rate=3e-2)

MakeTrainer = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads may be added in any order; also, tests must not fight for the processor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "fox.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture
def mix() -> Mix:
    data = np.frombuffer(TEXT, np.uint8)
    return Mix(data[:-1000], {"end": data[-1000:]}, ("foxes: 12,200 bytes x 1",))


@pytest.fixture
def make_trainer(mix: Mix) -> MakeTrainer:
    """Give a function that makes a trainer; its arguments are settings of the recipe."""

    def make(config: RHNConfig = CONFIG, dtype: torch.dtype = torch.float32, **settings: object) -> Trainer:
        return Trainer(RHN(config), replace(RECIPE, **settings), mix, dtype=dtype)  # type: ignore[arg-type]

    return make
