"""Model files: what goes in comes out, and nothing malformed gets in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from rhnzip.errors import ModelError
from rhnzip.exact.weights import ExactWeights, Linear
from rhnzip.models import modelfile
from rhnzip.models.modelfile import Model, load_model_file, save_model
from rhnzip.models.rhn import RHN, RHNConfig

Tensors = dict[str, NDArray[Any]]
Metadata = dict[str, str]


@pytest.fixture
def model(network: Any) -> Model:
    return Model("small", network.cell, network.weights, {"description": "for tests", "sources": ["a", "ü"]})


def read(path: Path) -> tuple[Tensors, Metadata]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def test_round_trip(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save_model(model, path)
    again = load_model_file(path)
    assert (again.name, again.card, again.id) == (model.name, model.card, model.id)
    assert again.cell.config == model.cell.config
    for name, linear in model.weights.linears.items():
        assert (again.weights.linears[name].weight == linear.weight).all()
        assert (again.weights.linears[name].scale == linear.scale).all()
    for name, table in model.weights.tables.items():
        assert (again.weights.tables[name] == table).all()
    assert again.weights.scales == model.weights.scales
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_saving_twice_gives_the_same_file(model: Model, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    save_model(model, one)
    save_model(load_model_file(one), two)
    assert read(one)[1] == read(two)[1] and one.stat().st_size == two.stat().st_size
    assert load_model_file(two).id == model.id


def test_a_save_that_fails_leaves_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        save_model(model, tmp_path / "small.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_bad_weights_are_not_saved(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    path.write_bytes(b"before")
    bad = replace(model, weights=replace(model.weights, scales={"state": float("nan")}))
    with pytest.raises(ModelError):
        save_model(bad, path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


# The id.


def test_id_is_pinned() -> None:
    """Archives carry this: it may never change."""
    cell = RHN(RHNConfig(units=2, depth=1, embedding=2))
    weights = ExactWeights(
        {
            "recurrent.0": Linear(
                np.array([[1, -2, 3, 4], [5, 6, 7, -127]], np.int8), np.ones(4, np.float32)
            ),
            "output": Linear(np.ones((2, 256), np.int8), np.full(256, 0.5, np.float32)),
        },
        {"input": np.ones((256, 4), np.float32), "output_bias": np.zeros((1, 256), np.float32)},
        {"state": 127.0},
    )
    assert Model("any", cell, weights).id.hex() == "1457d7860f4c0ff1"


def test_id_is_of_config_and_tensors_alone(model: Model) -> None:
    assert len(model.id) == 8
    assert replace(model, name="other", card={"description": "reworded"}).id == model.id
    other = RHN(replace(model.cell.config, gate_bias=-3.0))
    assert replace(model, cell=other).id != model.id


def test_id_changes_with_every_tensor(model: Model) -> None:
    weights, ids = model.weights, {model.id}
    for name, linear in weights.linears.items():
        weight, scale = linear.weight.copy(), linear.scale.copy()
        weight[0, 0] ^= 1
        scale[-1] = np.nextafter(scale[-1], np.float32(1))
        for changed in (Linear(weight, linear.scale), Linear(linear.weight, scale)):
            linears = {**weights.linears, name: changed}
            ids.add(replace(model, weights=replace(weights, linears=linears)).id)
    for name, table in weights.tables.items():
        values = table.copy()
        values[-1, -1] = np.nextafter(values[-1, -1], np.float32(1))
        ids.add(replace(model, weights=replace(weights, tables={**weights.tables, name: values})).id)
    ids.add(replace(model, weights=replace(weights, scales={"state": 126.0})).id)
    assert len(ids) == 1 + 2 * 3 + 3 + 1


def test_id_does_not_depend_on_order_or_layout(model: Model) -> None:
    linears = {
        name: Linear(np.asfortranarray(linear.weight), linear.scale)
        for name, linear in reversed(model.weights.linears.items())
    }
    assert replace(model, weights=replace(model.weights, linears=linears)).id == model.id


# Files that are refused.


def drop(name: str) -> Callable[[Tensors, Metadata], None]:
    return lambda tensors, _: [tensors.pop(name)] and None


def put(name: str, value: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Tensors, Metadata], None]:
    def change(tensors: Tensors, _: Metadata) -> None:
        tensors[name] = np.ascontiguousarray(value(tensors[name]))

    return change


def extra(tensors: Tensors, _: Metadata) -> None:
    tensors["table.more"] = np.zeros((1, 1), np.float32)


def say(name: str, value: str | None) -> Callable[[Tensors, Metadata], None]:
    def change(_: Tensors, metadata: Metadata) -> None:
        if value is None:
            del metadata[name]
        else:
            metadata[name] = value

    return change


def configure(**settings: Any) -> Callable[[Tensors, Metadata], None]:
    def change(_: Tensors, metadata: Metadata) -> None:
        metadata["config"] = json.dumps(json.loads(metadata["config"]) | settings)

    return change


def set_first(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(x: NDArray[Any]) -> NDArray[Any]:
        x = x.copy()
        x.reshape(-1)[0] = value
        return x

    return change


REFUSED: dict[str, tuple[Callable[[Tensors, Metadata], None], str]] = {
    "missing weight": (drop("output.weight"), "output.weight is missing"),
    "missing scale": (drop("recurrent.1.scale"), "recurrent.1.scale is missing"),
    "missing table": (drop("table.input"), "table.input is missing"),
    "missing value scale": (drop("value.state"), "value.state is missing"),
    "extra tensor": (extra, "unexpected tensor table.more"),
    "transposed weight": (put("output.weight", lambda x: x.T), "output.weight has shape"),
    "wrong table": (put("table.input", lambda x: x[:255]), "table.input has shape"),
    "scalar value scale": (put("value.state", lambda x: x.reshape(1, 1)), "value.state has shape"),
    "float weight": (put("output.weight", lambda x: x.astype(np.float32)), "matrix of int8"),
    "float64 table": (put("table.input", lambda x: x.astype(np.float64)), "float64"),
    "float64 value scale": (put("value.state", lambda x: x.astype(np.float64)), "float64"),
    "integer value scale": (put("value.state", lambda x: x.astype(np.int8)), "int8"),
    "weight -128": (put("output.weight", set_first(-128)), "-128"),
    "NaN table": (put("table.input", set_first(np.nan)), "NaN"),
    "infinite scale": (put("output.scale", set_first(np.inf)), "infinity"),
    "negative scale": (put("output.scale", set_first(-1)), "negative"),
    "subnormal table": (put("table.bias.1", set_first(1e-40)), "zero or of magnitude"),
    "NaN value scale": (put("value.state", set_first(np.nan)), "value scale nan"),
    "no format": (say("format", None), "not a model file"),
    "other format": (say("format", "rhnzip-model-2"), "not a model file"),
    "no config": (say("config", None), "damaged metadata"),
    "no name": (say("name", None), "damaged metadata"),
    "empty name": (say("name", ""), "1 to 64"),
    "long name": (say("name", "ä" * 33), "1 to 64"),
    "name with a line break": (say("name", "a\nb"), "printable"),
    "config not JSON": (say("config", "{"), "damaged metadata"),
    "config a list": (say("config", "[]"), "JSON objects"),
    "config nested too deeply": (say("config", "[" * 100_000), "damaged metadata"),
    "config with an endless number": (say("config", '{"units":' + "9" * 5000 + "}"), "damaged metadata"),
    "card not JSON": (say("card", "nothing"), "damaged metadata"),
    "card a string": (say("card", '"text"'), "JSON objects"),
    "unknown cell": (configure(cell="gru"), "unknown cell 'gru'"),
    "cell a list": (configure(cell=["rhn"]), "unknown cell"),
    "unknown setting": (configure(layers=3), "unknown setting 'layers'"),
    "setting of another type": (configure(units="24"), "'units'"),
    "fractional size": (configure(units=24.0), "'units'"),
    "size true": (configure(depth=True), "'depth'"),
    "number for a truth": (configure(coupled=1), "'coupled'"),
    "size zero": (configure(depth=0), "'depth'"),
    "negative size": (configure(units=-24), "'units'"),
    "huge size": (configure(units=1 << 40), "'units'"),
    "huge number": (configure(units=10**400), "'units'"),
    "large sizes": (configure(units=1 << 16, depth=1 << 9), "has shape"),
    "another size": (configure(units=25), "has shape"),
    "other vocabulary": (configure(vocabulary=205), "vocabulary"),
}


@pytest.fixture(scope="session")
def parts(network: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensors, Metadata]:
    """Tensors and metadata of a good file."""
    path = tmp_path_factory.mktemp("model") / "good"
    save_model(Model("small", network.cell, network.weights), path)
    return read(path)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, parts: tuple[Tensors, Metadata], tmp_path: Path) -> None:
    tensors, metadata = dict(parts[0]), dict(parts[1])
    path = tmp_path / "bad.safetensors"
    change, message = REFUSED[name]
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(ModelError, match=message):
        load_model_file(path)


def test_missing_setting_is_refused(parts: tuple[Tensors, Metadata], tmp_path: Path) -> None:
    tensors, metadata = parts
    config = json.loads(metadata["config"])
    del config["units"]
    path = tmp_path / "bad.safetensors"
    save_file(tensors, path, metadata | {"config": json.dumps(config)})
    with pytest.raises(ModelError, match="units"):
        load_model_file(path)


def test_smaller_vocabulary_is_refused_even_where_all_shapes_fit(tmp_path: Path) -> None:
    """Its tables would be read beyond their end: bytes go up to 255."""
    cell = RHN(RHNConfig(units=2, depth=1, embedding=2, vocabulary=100))
    weights = ExactWeights(
        {
            "recurrent.0": Linear(np.ones((2, 4), np.int8), np.ones(4, np.float32)),
            "output": Linear(np.ones((2, 100), np.int8), np.ones(100, np.float32)),
        },
        {"input": np.ones((100, 4), np.float32), "output_bias": np.ones((1, 100), np.float32)},
        {"state": 127.0},
    )
    path = tmp_path / "bad.safetensors"
    save_model(Model("small", cell, weights), path)
    with pytest.raises(ModelError, match="vocabulary of 100"):
        load_model_file(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64])
def test_other_types_are_refused(dtype: torch.dtype, parts: tuple[Tensors, Metadata], tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(value) for name, value in parts[0].items()}
    path = tmp_path / "bad.safetensors"
    save_torch_file(tensors | {"table.input": tensors["table.input"].to(dtype)}, path, parts[1])
    with pytest.raises(ModelError):
        load_model_file(path)


@pytest.fixture
def good(parts: tuple[Tensors, Metadata], tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_file(dict(parts[0]), path, dict(parts[1]))
    return path


def test_every_truncation_is_refused(good: Path) -> None:
    data = good.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, *range(len(data) - 1, 200, -len(data) // 20)]:
        good.write_bytes(data[:length])
        with pytest.raises(ModelError):
            load_model_file(good)


def test_damaged_headers_are_refused_or_read(good: Path) -> None:
    """No byte of the header may bring anything but a ModelError."""
    data = good.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    rng = np.random.default_rng(1)
    refused = 0
    for at in [*range(12), *rng.integers(12, header, 150).tolist()]:
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        good.write_bytes(changed)
        try:
            load_model_file(good)
        except ModelError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("content", [b"", b"text" * 100, b"\xff" * 64, bytes(64), b"PK\x03\x04" + bytes(60)])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_model_file(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            load_model_file(path)


def test_too_large_a_file_is_refused(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelfile, "MAX_MODEL_BYTES", good.stat().st_size)
    assert load_model_file(good).name == "small"
    monkeypatch.setattr(modelfile, "MAX_MODEL_BYTES", good.stat().st_size - 1)
    with pytest.raises(ModelError, match="larger than"):
        load_model_file(good)
