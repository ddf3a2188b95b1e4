"""Finding models: built-in ones by name or id, others by the path of their file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rhnzip.errors import UnknownModelError
from rhnzip.models.cell import parameter_count
from rhnzip.models.ensemble import MAX_MEMBERS, SEPARATOR, Ensemble
from rhnzip.models.modelfile import Model, load_model_file
from rhnzip.models.scratch import PREFIX as SCRATCH
from rhnzip.models.scratch import SHORT as SCRATCH_SHORT
from rhnzip.models.scratch import scratch_model

DEFAULT_MODEL = "rhn-4m"


@dataclass(frozen=True)
class ModelCard:
    """What is told of a built-in model.

    Attributes:
        name: as `--model` takes it.
        id_hex: the model id that archives carry, as 16 hexadecimal digits.
        parameters: number of trained parameters.
        description: one line.
        trained_on: one line per source of its training text.
        bpc: by held-out text, bits per byte of the network as trained (`float`) and as it codes (`exact`).
    """

    name: str
    id_hex: str
    parameters: int
    description: str
    trained_on: tuple[str, ...]
    bpc: dict[str, dict[str, float]]


def builtin_paths() -> dict[str, Path]:
    """Files of the built-in models by name."""
    folder = Path(str(resources.files("rhnzip") / "pretrained"))
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


@functools.lru_cache(maxsize=8)
def _builtin(name: str) -> Model:
    return load_model_file(builtin_paths()[name])


def available() -> list[ModelCard]:
    """Cards of the built-in models, by name.

    Raises:
        ModelError: a file among them is damaged.
    """
    return [
        ModelCard(
            name=model.name,
            id_hex=model.id.hex(),
            parameters=parameter_count(model.cell),
            description=str(model.card.get("description", "")),
            trained_on=tuple(model.card.get("trained_on", ())),
            bpc=dict(model.card.get("bpc", {})),
        )
        for model in map(_builtin, builtin_paths())
    ]


def load(name: str | None = None) -> Model | Ensemble:
    """A model as `load_model` takes it, or several joined by `+`: an ensemble.

    Raises:
        UnknownModelError: no such name or file.
        ModelError: the file is refused.
    """
    if name is None or SEPARATOR not in name or Path(name).is_file():
        return load_model(name)
    members = name.split(SEPARATOR)
    if len(members) > MAX_MEMBERS:
        raise UnknownModelError(f"an ensemble of {len(members)} models; at most {MAX_MEMBERS} may be joined")
    return Ensemble(tuple(load_model(member) for member in members))


def load_model(name: str | None = None) -> Model:
    """A built-in model by name (None: the default), a model file by its path, or a drawn one (`scratch:...`).

    Raises:
        UnknownModelError: no such name or file.
        ModelError: the file is refused.
    """
    name = name or DEFAULT_MODEL
    if name == SCRATCH_SHORT or name.startswith(SCRATCH):
        return scratch_model(name)
    if name in builtin_paths():
        return _builtin(name)
    if Path(name).is_file():
        return load_model_file(Path(name))
    known = ", ".join(builtin_paths()) or "none"
    raise UnknownModelError(f"no model {name!r}: neither a file nor one of the built-in models ({known})")


def find_model(model_id: bytes, name: str, extra: str | None = None) -> Model | Ensemble:
    """The model an archive was written with, or the ensemble, by id.

    Args:
        model_id: 8 bytes of the frame header.
        name: the header's name for it, for the error and as a first guess.
        extra: name or path of a further model to consider; several joined by `+`.

    Raises:
        UnknownModelError: no model at hand has this id.
    """
    if extra is not None:
        model = load(extra)
        if model.id == model_id:
            return model
        if extra != name:
            raise UnknownModelError(
                f"the archive needs model {name!r}, id {model_id.hex()}; "
                f"{extra} is {model.name!r}, id {model.id.hex()}"
            )
    if SEPARATOR in name and all(_is_named(member) for member in name.split(SEPARATOR)):
        model = load(name)
        if model.id == model_id:
            return model
    if name.startswith(SCRATCH) and scratch_model(name).id == model_id:
        return scratch_model(name)
    names = builtin_paths()
    for candidate in sorted(names, key=lambda known: known != name):
        if _builtin(candidate).id == model_id:
            return _builtin(candidate)
    raise UnknownModelError(
        f"the archive needs model {name!r}, id {model_id.hex()}, which is not built into this version; "
        "give its file with --model, or use the rhnzip release that wrote the archive"
    )


def _is_named(name: str) -> bool:
    """Whether this release knows the name by itself: what a header says is never taken for a path."""
    return name.startswith(SCRATCH) or name in builtin_paths()
