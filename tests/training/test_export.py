from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rhnzip
from rhnzip.errors import ModelError, TrainingError
from rhnzip.exact.backend import Backend, get_backend
from rhnzip.models.evaluation import exact_bpc
from rhnzip.models.modelfile import load_model_file
from rhnzip.models.rhn import RHNConfig
from rhnzip.training.export import (
    MEASURED_BYTES,
    Trained,
    check_name,
    describe,
    export_model,
    load_trained,
    measure,
    model_scores,
    quantised,
    trained_scores,
    write_model,
)
from rhnzip.training.loop import Trainer

MakeTrainer = Callable[..., Trainer]

SMALL = RHNConfig(units=16, depth=2, embedding=8)
TEXT = np.frombuffer(b"the quick brown fox jumps over the lazy dog\n" * 30, np.uint8)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return get_backend()


def trained_network(trainer: Trainer, folder: Path, steps: int = 30) -> Trained:
    for _ in range(steps):
        trainer.train_segment()
    trainer.save(folder / "checkpoint.pt")
    return load_trained(folder / "checkpoint.pt")


def test_exported_model_codes(make_trainer: MakeTrainer, backend: Backend, tmp_path: Path) -> None:
    trained = trained_network(make_trainer(), tmp_path)
    measured: list[int] = []
    model = export_model(
        trained,
        "fox",
        backend,
        release="9.8",
        texts={"fox": TEXT, "end": TEXT[-200:]},
        progress=measured.append,
    )
    assert measured == [len(TEXT), len(TEXT) + 200]
    path = tmp_path / "new" / "fox.safetensors"
    card_path = write_model(model, path)
    loaded = load_model_file(path)
    assert loaded.id == model.id and loaded.card == json.loads(json.dumps(model.card))

    card = loaded.card
    assert (card["name"], card["rhnzip"], card["trained_bytes"]) == ("fox", "9.8", 30 * 64)
    assert card["description"] == "recurrent highway network, units 16, depth 2"
    assert card["parameters"] == sum(value.numel() for value in trained.parameters.values())
    assert card["trained_on"] == ["foxes: 12,200 bytes x 1"]
    assert card["recipe"]["lanes"] == 4 and card["cell"]["units"] == 16
    assert card["bpc"]["fox"]["exact"] == round(exact_bpc(loaded.cell, loaded.weights, TEXT, backend), 4)
    assert card["bpc"]["fox"]["float"] == pytest.approx(card["bpc"]["fox"]["exact"], abs=0.05)
    assert card["bpc"]["fox"]["exact"] < 5 < card["bpc"]["fox"]["exact"] + 4

    page = card_path.read_text()
    assert card_path == path.with_suffix(".md") and page.startswith("# fox\n")
    assert f"`{model.id.hex()}`" in page and "* foxes: 12,200 bytes x 1\n" in page
    assert f"| fox | {card['bpc']['fox']['float']:.4f} | {card['bpc']['fox']['exact']:.4f} |" in page

    raw = TEXT.tobytes()
    packed = rhnzip.compress(raw, model=str(path), threads=1)
    assert len(packed) < 0.7 * len(raw)
    assert rhnzip.decompress(packed, model=str(path), threads=1) == raw


def test_scores_of_checkpoint_and_model_agree(
    make_trainer: MakeTrainer, backend: Backend, tmp_path: Path
) -> None:
    trained = trained_network(make_trainer(), tmp_path)
    model = export_model(trained, "fox", backend, release="1", texts={}, description="about foxes")
    assert (model.card["description"], model.card["bpc"]) == ("about foxes", {})
    before = measure(trained_scores(trained, model.weights, backend), TEXT)
    after = measure(model_scores(model, backend), TEXT)
    assert before["exact"] == after["exact"]
    assert after["dequantised"] == pytest.approx(before["float"], abs=0.05)
    assert after["dequantised"] != before["float"]
    assert list(before) == ["float", "exact"] and list(after) == ["dequantised", "exact"]


def test_long_texts_are_measured_piece_by_piece() -> None:
    text, done = np.arange(2 * MEASURED_BYTES + 10, dtype=np.int64).astype(np.uint8), list[int]()
    bpc = measure({"length": len, "mean": lambda piece: float(piece.mean())}, text, done.append)
    assert done == [MEASURED_BYTES, 2 * MEASURED_BYTES, 2 * MEASURED_BYTES + 10]
    assert bpc["length"] == pytest.approx((2 * MEASURED_BYTES**2 + 100) / len(text))
    assert bpc["mean"] == pytest.approx(text.mean())


def test_uncoupled_network_measures_its_range(
    make_trainer: MakeTrainer, backend: Backend, tmp_path: Path
) -> None:
    trained = trained_network(make_trainer(replace(SMALL, coupled=False, gate_bias=0.0)), tmp_path)
    with pytest.raises(TrainingError, match="must be measured on text, at least 1024 bytes"):
        export_model(trained, "fox", backend, release="1", texts={})
    with pytest.raises(TrainingError, match="must be measured on text"):
        quantised(trained, TEXT[:100])
    model = export_model(trained, "fox", backend, release="1", texts={"fox": TEXT})
    assert model.weights.scales["state"] != 127
    assert model.card["description"].endswith("units 16, depth 2, uncoupled gates")
    assert model.card["bpc"]["fox"]["float"] == pytest.approx(model.card["bpc"]["fox"]["exact"], abs=0.1)
    other = export_model(trained, "fox", backend, release="1", texts={}, sample=TEXT)
    assert other.id == model.id


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", ".a", "a/b", "ü", "a" * 65])
def test_bad_names(name: str) -> None:
    with pytest.raises(TrainingError, match="cannot name a model"):
        check_name(name)


def test_good_names() -> None:
    for name in ("a", "rhn-4m", "RHN_4.1", "a" * 64):
        check_name(name)


def test_unknown_kinds_describe_themselves() -> None:
    assert describe({"cell": "new", "depth": 1, "units": 2}) == "new, depth 1, units 2"


def test_damaged_networks_are_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trained = trained_network(make_trainer(), tmp_path, steps=1)
    trained.parameters["output"][0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        quantised(trained, None)
    path = tmp_path / "checkpoint.pt"
    content = torch.load(path)
    content["parameters"]["output"] = torch.zeros(3)
    torch.save(content, path)
    with pytest.raises(TrainingError, match="its parameters do not fit its configuration"):
        load_trained(path)


def test_model_that_cannot_be_written(make_trainer: MakeTrainer, backend: Backend, tmp_path: Path) -> None:
    model = export_model(
        trained_network(make_trainer(), tmp_path, steps=1), "fox", backend, release="1", texts={}
    )
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot write"):
        write_model(model, tmp_path / "file" / "fox.safetensors")
    (tmp_path / "dog.safetensors.tmp").mkdir()
    with pytest.raises(TrainingError, match="cannot write"):
        write_model(model, tmp_path / "dog.safetensors")
    with pytest.raises(TrainingError, match=r"must end in \.safetensors"):
        write_model(model, tmp_path / "fox.md")
