from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from rhnzip.cli import cli
from rhnzip.errors import TrainingError
from rhnzip.models.modelfile import Model, save_model
from rhnzip.models.quantisation import exact_weights
from rhnzip.models.registry import make_cell
from rhnzip.training.analysis import DISTANCE, LANES, analyse, picture

TEXT = np.frombuffer(b"In the beginning was the word, and the word was with the coder. " * 20, np.uint8)


def network(**config: Any) -> Any:
    cell = make_cell({"embedding": 8, **config})
    return cell, cell.fold(cell.initial(torch.Generator().manual_seed(3)))


def test_highway_network() -> None:
    cell, folded = network(cell="rhn", units=12, depth=3)
    found = analyse(cell, folded, TEXT)
    steps = len(TEXT) // LANES
    assert found.gates.shape == (3, steps)
    assert ((found.gates > 0) & (found.gates < 0.5)).all()  # gates start biased towards carrying
    assert found.lesions.shape == (3,)
    assert found.eigenvalues.shape[1] == 12
    # Gersgorin: every eigenvalue lies in one of the circles
    inside = np.abs(found.eigenvalues[-1][:, None] - found.centres) <= found.radii + 1e-4
    assert inside.any(axis=1).all()
    assert found.gradients.shape == (1, DISTANCE) and found.gradients[0, 0] == 1
    assert found.bpc == pytest.approx(8, abs=1)
    assert json.dumps(found.summary())


@pytest.mark.parametrize(
    "config",
    [
        {"cell": "lstm", "units": 10, "layers": 2},
        {"cell": "fsrnn", "fast_units": 8, "slow_units": 6},
        {"cell": "hsg", "units": 8, "depth": 2},
        {"cell": "hyper_rhn", "units": 8, "depth": 2, "hyper_units": 4},
    ],
)
def test_other_networks(config: dict[str, Any]) -> None:
    cell, folded = network(**config)
    found = analyse(cell, folded, TEXT)
    assert len(found.change) == len(found.gradients) == len(cell.state_widths())
    assert (found.change > 0).all()
    assert found.eigenvalues.shape[1] == sum(cell.state_widths())
    assert (len(found.lesions) == 2) == (config["cell"] == "hsg")


def test_short_text() -> None:
    cell, folded = network(cell="rhn", units=8, depth=1)
    with pytest.raises(TrainingError, match="at least 800 bytes"):
        analyse(cell, folded, TEXT[:700])


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cell, folded = network(cell="rhn", units=8, depth=2)
    picture(analyse(cell, folded, TEXT), "test", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_command(tmp_path: Path) -> None:
    file, model = tmp_path / "text", tmp_path / "toy.safetensors"
    file.write_bytes(TEXT.tobytes())
    cell = make_cell({"cell": "rhn", "units": 16, "depth": 2, "embedding": 8})
    parameters = cell.initial(torch.Generator().manual_seed(3))
    save_model(Model("toy", cell, exact_weights(cell, parameters, TEXT)), model)
    result = CliRunner().invoke(cli, ["inspect", str(model), str(file), "--json"], catch_exceptions=False)
    assert len(json.loads(result.output)["lesion_bits_by_depth"]) == 2
    plain = CliRunner().invoke(cli, ["inspect", str(model), str(file)], catch_exceptions=False)
    assert "spectral radius: [" in plain.output
