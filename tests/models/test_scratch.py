"""Networks drawn from their name."""

from __future__ import annotations

import numpy as np
import pytest

from rhnzip.errors import UnknownModelError
from rhnzip.models.library import find_model, load_model
from rhnzip.models.scratch import DEFAULT, scratch_model


def test_drawn_network_is_within_the_arithmetic_and_varied() -> None:
    model = scratch_model("scratch:2x24")
    model.weights.check()
    linear = model.weights.linears["lstm.1.recurrent"]
    weight = linear.weight
    assert weight.shape == (24, 96) and len(np.unique(weight)) > 150
    bound = 2.0**-3  # the power of two below 1 / sqrt(24)
    largest = np.abs(weight).max() * linear.scale.max() * 127
    assert 0.9 * bound < largest <= bound


def test_id_is_the_same_everywhere() -> None:
    assert load_model("scratch:2x24").id.hex() == "e790b7b87ce8c431"


def test_seed_changes_the_network() -> None:
    assert scratch_model("scratch:2x24:5").id != scratch_model("scratch:2x24").id
    assert scratch_model("scratch:2x24:5").name == "scratch:2x24:5"
    assert scratch_model("scratch:2x24:0").name == "scratch:2x24"


def test_there_is_a_short_name() -> None:
    assert load_model("scratch").id == load_model(DEFAULT).id
    assert load_model("scratch").name == DEFAULT


def test_archive_needs_nothing_but_the_name() -> None:
    model = scratch_model("scratch:1x16:3")
    assert find_model(model.id, model.name).id == model.id
    with pytest.raises(UnknownModelError):
        find_model(bytes(8), model.name)


@pytest.mark.parametrize(
    "name",
    [
        "scratch:",
        "scratch:2",
        "scratch:0x64",
        "scratch:2x4",
        "scratch:33x64",
        "scratch:2x64:x",
        "scratch:32x4096",
        "scratch:3x2900",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownModelError, match="scratch:"):
        load_model(name)
