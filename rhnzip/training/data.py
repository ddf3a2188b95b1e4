"""Training text: a mix of files described in TOML, cut into pieces, shuffled once, read in lanes.

    [[source]]
    files = ["wiki/*.txt.xz", "pages_train"]   # relative to the TOML file; globs; .xz is unpacked
    bytes = 75_000_000                          # at most this many (whole files when absent)
    repeat = 1                                  # times the text is taken
    crlf = 0.05                                 # share of pieces whose line ends become CR LF

    [valid]
    wiki = "wiki_valid.txt.xz"                  # name = file; never seen in training
"""

from __future__ import annotations

import lzma
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rhnzip.errors import TrainingError
from rhnzip.models.evaluation import Bytes

PIECE = 1 << 16
"""Pieces of this many bytes (cut at the next line end) are shuffled; large beside any BPTT length."""


@dataclass(frozen=True)
class Mix:
    """Training and validation text.

    Attributes:
        train: all pieces in their shuffled order, uint8.
        valid: held-out text by name.
        description: one line per source, for the model card.
    """

    train: Bytes
    valid: dict[str, Bytes]
    description: tuple[str, ...]


def read_text(path: Path) -> bytes:
    """Read a file, unpacking `.xz`."""
    try:
        return lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise TrainingError(f"cannot read training text {path}: {error}") from error


def load_mix(path: Path, seed: int) -> Mix:
    """Read a mix file; the order of the pieces depends on `seed` alone."""
    try:
        spec = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TrainingError(f"cannot read the mix {path}: {error}") from error
    rng = np.random.default_rng(seed)
    pieces: list[bytes] = []
    description = []
    for source in spec.get("source", []):
        taken, budget = 0, source.get("bytes", 1 << 62)
        files = [name for pattern in source["files"] for name in sorted(path.parent.glob(pattern))]
        if not files:
            raise TrainingError(f"{path}: no file matches {source['files']}")
        if source.get("shuffle", False):
            files = [files[i] for i in rng.permutation(len(files))]
        for name in files:
            if taken >= budget:
                break
            text = read_text(name)[: budget - taken]
            taken += len(text)
            for _ in range(source.get("repeat", 1)):
                for piece in _cut(text):
                    crlf = rng.random() < source.get("crlf", 0.0) and b"\r\n" not in piece
                    pieces.append(piece.replace(b"\n", b"\r\n") if crlf else piece)
        description.append(f"{source.get('name', source['files'][0])}: {taken:,} bytes x {source.get('repeat', 1)}")
    if not pieces:
        raise TrainingError(f"{path}: the mix has no [[source]]")
    order = rng.permutation(len(pieces))
    train = np.frombuffer(b"".join(pieces[i] for i in order), np.uint8)
    valid = {name: np.frombuffer(read_text(path.parent / file), np.uint8) for name, file in spec.get("valid", {}).items()}
    return Mix(train, valid, tuple(description))


def _cut(text: bytes) -> list[bytes]:
    pieces, start = [], 0
    while start < len(text):
        end = text.find(b"\n", start + PIECE - 1) + 1
        if not start < end <= start + 2 * PIECE:
            end = min(start + PIECE, len(text))
        pieces.append(text[start:end])
        start = end
    return pieces
