"""Training text: one file, or a mix of files described in TOML, read in lanes.

A mix is cut into pieces, shuffled once:

    [[source]]
    name = "wiki, plain prose"                  # for the model card; else the first of `files`
    files = ["wiki/*.txt.xz", "pages_train"]    # relative to the TOML file; globs; .xz is unpacked
    bytes = 75_000_000                          # at most this many (whole files when absent)
    repeat = 1                                  # times the text is taken
    crlf = 0.05                                 # share of pieces whose line ends become CR LF
    shuffle = false                             # whether `bytes` is taken from the files in random order
    ordered = false                             # keep the text in its own order: one piece

    [valid]
    wiki = "wiki_valid.txt.xz"                  # name = file; never seen in training
"""

from __future__ import annotations

import lzma
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from rhnzip.errors import TrainingError
from rhnzip.models.evaluation import Bytes

PIECE = 1 << 14
"""Pieces of this many bytes (cut at the next line end) are shuffled. Large beside any BPTT length; small
enough that the lanes, which together make one gradient, soon leave the documents they are in."""

HELD_OUT = 20
"""Of a text given without a mix, the last 1 / HELD_OUT is held out."""


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


@dataclass(frozen=True)
class _Source:
    """One `[[source]]`; see the module's docstring."""

    files: list[str]
    name: str
    bytes: int = 1 << 62
    repeat: int = 1
    crlf: float = 0.0
    shuffle: bool = False
    ordered: bool = False


def read_text(path: Path) -> bytes:
    """Read a file, unpacking `.xz`.

    Raises:
        TrainingError: it cannot be read, or is empty.
    """
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                text = file.read()
        else:
            text = path.read_bytes()
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise TrainingError(f"cannot read the text {path}: {error}") from error
    if not text:
        raise TrainingError(f"the text {path} is empty")
    return text


def load_text(path: Path) -> Bytes:
    """Read a file as `read_text` does, as uint8 of shape (length,)."""
    return np.frombuffer(read_text(path), np.uint8)


def load_data(path: Path, seed: int) -> Mix:
    """Read a mix (`.toml`), or any other file as a text whose last 5 % are held out.

    Raises:
        TrainingError: see `load_mix` and `split_text`.
    """
    return load_mix(path, seed) if path.suffix == ".toml" else split_text(path)


def split_text(path: Path) -> Mix:
    """Read one text in its own order; its last 5 % are held out as `valid`.

    Raises:
        TrainingError: it cannot be read, or is too short to hold anything out.
    """
    text = load_text(path)
    held_out = len(text) // HELD_OUT
    if not held_out:
        raise TrainingError(f"the text {path} has only {len(text)} bytes; training needs more")
    train, valid = text[:-held_out], text[-held_out:]
    return Mix(train, {"valid": valid}, (f"{path.name}: {len(train):,} bytes x 1",))


def load_mix(path: Path, seed: int) -> Mix:
    """Read a mix file; the order of the pieces depends on `seed` alone.

    Raises:
        TrainingError: the file or one it names cannot be read, or it says what a mix cannot say.
    """
    try:
        spec = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the mix {path}: {error}") from error
    sources, held_out = _parse(path, spec)
    rng = np.random.default_rng(seed)
    pieces: list[bytes] = []
    description = []
    for source in sources:
        taken = 0
        files = _files(path, source)
        if source.shuffle:
            files = [files[i] for i in rng.permutation(len(files))]
        for name in files:
            if taken >= source.bytes:
                break
            text = read_text(name)[: source.bytes - taken]
            taken += len(text)
            for _ in range(source.repeat):
                for piece in [text] if source.ordered else _cut(text):
                    crlf = rng.random() < source.crlf and b"\r\n" not in piece
                    pieces.append(piece.replace(b"\n", b"\r\n") if crlf else piece)
        description.append(f"{source.name}: {taken:,} bytes x {source.repeat}")
    order = rng.permutation(len(pieces))
    train = np.frombuffer(b"".join(pieces[i] for i in order), np.uint8)
    valid = {name: load_text(path.parent / file) for name, file in held_out.items()}
    return Mix(train, valid, tuple(description))


def _parse(path: Path, spec: dict[str, Any]) -> tuple[list[_Source], dict[str, str]]:
    """Check what a mix file says: its sources, and the files of its held-out texts by name."""
    for key in spec.keys() - {"source", "valid"}:
        raise TrainingError(f"{path}: unknown entry {key!r}; a mix has [[source]] and [valid]")
    tables = spec.get("source")
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise TrainingError(f"{path}: the mix has no [[source]]")
    valid = spec.get("valid", {})
    if not isinstance(valid, dict):
        raise TrainingError(f"{path}: [valid] must hold lines of the form name = file")
    for name, file in valid.items():
        # The log joins names and figures with "=" and spaces.
        if not isinstance(file, str) or not re.fullmatch(r"[\w.+-]+", name):
            raise TrainingError(f"{path}: [valid] {name!r}: want a name without spaces, and one file's path")
    return [_parse_source(path, number, table) for number, table in enumerate(tables, 1)], valid


def _parse_source(path: Path, number: int, table: dict[str, Any]) -> _Source:
    where = f"{path}: [[source]] number {number}"
    for key in table.keys() - {field.name for field in fields(_Source)}:
        raise TrainingError(f"{where}: unknown setting {key!r}")
    files = table.get("files")
    if not (isinstance(files, list) and files and all(isinstance(file, str) and file for file in files)):
        raise TrainingError(f"{where}: files must be a list of paths")
    for key, good, kind in (
        ("name", lambda value: isinstance(value, str), "text"),
        ("bytes", lambda value: type(value) is int and value > 0, "a whole number of at least 1"),
        ("repeat", lambda value: type(value) is int and value > 0, "a whole number of at least 1"),
        ("crlf", lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number in 0..1"),
        ("shuffle", lambda value: isinstance(value, bool), "true or false"),
        ("ordered", lambda value: isinstance(value, bool), "true or false"),
    ):
        if key in table and not good(table[key]):
            raise TrainingError(f"{where}: {key} must be {kind}, not {table[key]!r}")
    return _Source(**{"name": files[0]} | table)


def _files(path: Path, source: _Source) -> list[Path]:
    files = []
    for pattern in source.files:
        try:
            found = sorted(name for name in path.parent.glob(pattern) if name.is_file())
        except (NotImplementedError, ValueError) as error:
            raise TrainingError(f"{path}: {pattern!r} must be relative to the mix: {error}") from error
        if not found:
            raise TrainingError(f"{path}: no file matches {pattern!r}")
        files += found
    return files


def _cut(text: bytes) -> list[bytes]:
    pieces, start = [], 0
    while start < len(text):
        end = text.find(b"\n", start + PIECE - 1) + 1
        if not start < end <= start + 2 * PIECE:
            end = min(start + PIECE, len(text))
        pieces.append(text[start:end])
        start = end
    return pieces
