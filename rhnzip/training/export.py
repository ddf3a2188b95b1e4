"""A trained network as a model file: quantise it, measure what that costs, and describe it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from rhnzip.errors import TrainingError
from rhnzip.exact.backend import Backend
from rhnzip.exact.weights import ExactWeights
from rhnzip.models.cell import Cell, Folded, parameter_count
from rhnzip.models.evaluation import LANE_BYTES, Bytes, exact_bpc, float_bpc
from rhnzip.models.modelfile import Model, save_model
from rhnzip.models.quantisation import exact_weights
from rhnzip.training.loop import cell_of, read_checkpoint

MODEL_SUFFIX = ".safetensors"
KINDS = {
    "fsrnn": "fast-slow RNN",
    "hsg": "recurrent highway network with a state gate",
    "hyper_rhn": "recurrent highway hypernetwork",
    "lstm": "LSTM",
    "rhn": "recurrent highway network",
}

MEASURED_BYTES = 1 << 18
"""A model's card gives its figures on the first this many bytes of each held-out text."""

MIN_SAMPLE = 1 << 10
"""Fewest bytes of text to measure the range of a network's values on."""

Score = Callable[[Bytes], float]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds of a trained network.

    Attributes:
        cell: equations and sizes.
        parameters: float32, by name.
        recipe: the `Recipe` it was trained by, as a dictionary.
        trained_on: one line per source of its training text.
        bytes_done: training bytes seen.
        history: recipe, text and bytes of the runs that this one started from, the first one first.
    """

    cell: Cell
    parameters: dict[str, Tensor]
    recipe: dict[str, Any]
    trained_on: tuple[str, ...]
    bytes_done: int
    history: tuple[dict[str, Any], ...] = ()


def load_trained(path: Path) -> Trained:
    """Read a checkpoint for use on the CPU.

    Raises:
        TrainingError: it cannot be read, or is none.
        ModelError: its configuration is not one of this release.
    """
    content = read_checkpoint(path)
    cell, recipe, parameters = cell_of(content), content["recipe"], content["parameters"]
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    if shapes != cell.shapes():
        raise TrainingError(f"the checkpoint {path} is damaged: its parameters do not fit its configuration")
    earlier = tuple({"recipe": run["recipe"], "bytes": _bytes_of(run)} for run in content.get("history", ()))
    return Trained(cell, parameters, recipe, tuple(content["data"]), _bytes_of(content), earlier)


def _bytes_of(run: Mapping[str, Any]) -> int:
    return int(run["step"] * run["recipe"]["lanes"] * run["recipe"]["segment"])


def quantised(trained: Trained, sample: Bytes | None) -> ExactWeights:
    """Quantise a trained network.

    Args:
        trained: the network.
        sample: text of the kind it is for; needed where the range of its values is not known beforehand.

    Raises:
        TrainingError: a sample is needed, and there is none or it is too short.
        ModelError: parameters that are not finite, or too large.
    """
    if sample is None:
        sample = np.zeros(0, np.uint8)
    if needs_sample(trained.cell) and len(sample) < MIN_SAMPLE:
        raise TrainingError(
            f"the range of this network's values must be measured on text, at least {MIN_SAMPLE} bytes; "
            "name a mix or a held-out text"
        )
    return exact_weights(trained.cell, trained.parameters, sample)


def trained_scores(trained: Trained, weights: ExactWeights, backend: Backend) -> dict[str, Score]:
    """Bits per byte of a text under a trained network: `float`, and quantised, `exact`."""
    return {
        "float": functools.partial(float_bpc, trained.cell, trained.parameters),
        "exact": lambda text: exact_bpc(trained.cell, weights, text, backend),
    }


def model_scores(model: Model, backend: Backend) -> dict[str, Score]:
    """Bits per byte of a text under a model: `exact`, and `dequantised`, its int8 weights in float."""
    folded = dequantised(model)
    cell = cast(Cell, _FoldedCell(model.cell, folded))
    return {
        "dequantised": functools.partial(float_bpc, cell, folded.tables),
        "exact": lambda text: exact_bpc(model.cell, model.weights, text, backend),
    }


def dequantised(model: Model) -> Folded:
    """The float weights that a model's int8 weights and scales stand for."""
    inputs, scales = model.cell.inputs(), model.weights.scales
    linears = {
        name: torch.from_numpy(linear.weight * (linear.scale * np.float32(scales[inputs[name]])))
        for name, linear in model.weights.linears.items()
    }
    return Folded(linears, {name: torch.from_numpy(table) for name, table in model.weights.tables.items()})


class _FoldedCell:
    """A cell as `float_bpc` uses it, whose parameters are folded already."""

    def __init__(self, cell: Cell, folded: Folded) -> None:
        self.state_widths, self.step, self.head = cell.state_widths, cell.step, cell.head
        self._folded = folded

    def fold(self, _parameters: Mapping[str, Tensor]) -> Folded:
        return self._folded


def measure(
    scores: Mapping[str, Score],
    text: Bytes,
    progress: Progress = lambda _bytes_done: None,
) -> dict[str, float]:
    """Bits per byte of a whole text by each score, piece after piece of `MEASURED_BYTES`.

    Args:
        scores: see `trained_scores` and `model_scores`.
        text: of any length above 0.
        progress: called after each piece with the bytes done.
    """
    bits, done = dict.fromkeys(scores, 0.0), 0
    for start in range(0, len(text), MEASURED_BYTES):
        piece = text[start : start + MEASURED_BYTES]
        done += len(piece)
        for name, score in scores.items():
            bits[name] += score(piece) * len(piece)
        progress(done)
    return {name: total / done for name, total in bits.items()}


def export_model(
    trained: Trained,
    name: str,
    backend: Backend,
    *,
    release: str,
    texts: Mapping[str, Bytes],
    sample: Bytes | None = None,
    description: str | None = None,
    progress: Progress = lambda _bytes_done: None,
) -> Model:
    """Quantise a network and write its card.

    Args:
        trained: the network.
        name: what to call the model.
        backend: what computes the exact figures.
        release: the version of rhnzip, for the card.
        texts: held-out text by name, to measure on (the first `MEASURED_BYTES` of each).
        sample: see `quantised`; None takes the first of `texts`.
        description: one line for lists of models; None describes the network's sizes.
        progress: called after each text with the bytes measured so far.

    Raises:
        TrainingError: a name that is none, or see `quantised`.
        ModelError: see `quantised`.
    """
    check_name(name)
    texts = {text_name: text[:MEASURED_BYTES] for text_name, text in texts.items()}
    if sample is None:
        sample = next(iter(texts.values()), None)
    weights = quantised(trained, sample)
    scores = trained_scores(trained, weights, backend)
    bpc, measured = {}, 0
    for text_name, text in texts.items():
        figures = measure(scores, text)
        bpc[text_name] = {figure: round(value, 4) for figure, value in figures.items()}
        measured += len(text)
        progress(measured)
    config = asdict(trained.cell.config)
    card = {
        "name": name,
        "description": description or describe(config),
        "cell": config,
        "parameters": parameter_count(trained.cell),
        "trained_on": list(trained.trained_on),
        "trained_bytes": trained.bytes_done,
        "recipe": dict(trained.recipe),
        "earlier_runs": list(trained.history),
        "bpc": bpc,
        "rhnzip": release,
    }
    return Model(name, trained.cell, weights, card)


def check_name(name: str) -> None:
    """Refuse what cannot be both a model's name and the stem of its file.

    Raises:
        TrainingError: says what can.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise TrainingError(
            f"{name!r} cannot name a model: use 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit"
        )


def check_path(path: Path) -> None:
    """Refuse a model file whose name does not tell what it is.

    Raises:
        TrainingError: says how it must end.
    """
    if path.suffix != MODEL_SUFFIX:
        raise TrainingError(f"the name of a model file must end in {MODEL_SUFFIX}, unlike {path}")


def needs_sample(cell: Cell) -> bool:
    """Whether a network must see text to be quantised, since the range of a value of it is not known."""
    return None in cell.value_scales().values()


def describe(config: Mapping[str, Any]) -> str:
    """One line on a network's sizes.

    >>> describe({"cell": "rhn", "depth": 4, "units": 640, "coupled": False})
    'recurrent highway network, depth 4, units 640, uncoupled gates'
    >>> describe({"cell": "lstm", "units": 375, "layers": 5, "embedding": 256, "sequential": False})
    'LSTM, units 375, layers 5'
    """
    sizes = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in config.items()
        if type(value) is int and value and name not in ("embedding", "vocabulary")
    ]
    gates = [] if config.get("coupled", True) else ["uncoupled gates"]
    return ", ".join([KINDS.get(config["cell"], config["cell"]), *sizes, *gates])


def write_model(model: Model, path: Path) -> Path:
    """Write a model file, and beside it its card as Markdown; returns the path of the card.

    Raises:
        TrainingError: one of them cannot be written, or `path` does not end in `.safetensors`.
        ModelError: weights that the arithmetic does not cover.
    """
    check_path(path)
    card = path.with_suffix(".md")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(model, path)
        card.write_text(markdown(model), "utf-8")
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {path} and its card: {error}") from error
    return card


def markdown(model: Model) -> str:
    """The card of an exported model as a page of Markdown."""
    card = model.card
    config = ", ".join(f"{key} {value}" for key, value in card["cell"].items() if key != "cell")
    recipe = ", ".join(f"{key} {value}" for key, value in card["recipe"].items())
    sources = "".join(f"* {line}\n" for line in card["trained_on"])
    earlier = "".join(
        f"It started from the network of a run of {run['bytes']:,} bytes: "
        + ", ".join(f"{key} {value}" for key, value in run["recipe"].items())
        + ".\n\n"
        for run in reversed(card.get("earlier_runs", []))
    )
    figures = "No held-out text was measured.\n"
    if card["bpc"]:
        head = "| text | float | exact |\n|---|---|---|\n"
        rows = (
            f"| {text} | {bpc['float']:.4f} | {bpc['exact']:.4f} |\n" for text, bpc in card["bpc"].items()
        )
        figures = head + "".join(rows)
    return f"""# {model.name}

{card["description"]}: a model of rhnzip {card["rhnzip"]}. It predicts the next byte of a text, and a range
coder spends few bits on a byte that was predicted well.

* model id: `{model.id.hex()}` (archives name the model by it)
* parameters: {card["parameters"]:,}
* network: {card["cell"]["cell"]}; {config}

## Training

{card["trained_bytes"]:,} bytes, drawn from:

{sources}
Recipe: {recipe}.

{earlier}## Figures

Bits per byte on the first {MEASURED_BYTES // 1024} KiB of each held-out text, cut into lanes of about
{LANE_BYTES // 1024} KiB that each start knowing nothing. *Float* is the network as it was trained; *exact*
has int8 weights and the arithmetic that codes: eight divided by it is the compression ratio before the
archive's headers.

{figures}
## Intended use and limits

* Made for lossless compression with rhnzip of text like what it was trained on. Any bytes can be coded;
  what is unlike the training text (binary data above all) shrinks little or is stored as it is.
* An archive can be decoded only with this very model. Keep the file as long as the archives.
* The probabilities repeat what is frequent in the training text, its errors and prejudices included. They
  are a means to spend fewer bits and nothing else: the model is not made to write, to judge or to answer.
"""
