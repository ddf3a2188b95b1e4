"""The papers' corpora, checked and split as the papers split them.

* enwik8: the first 10^8 bytes of a dump of English Wikipedia; 90, 5 and 5 million bytes.
* text8: 10^8 letters a-z and spaces made from a longer dump; the same split.
* ptb: Penn Treebank as Mikolov preprocessed it, a file for each part; bits per byte are the papers' bits per
  character, since each of its 50 characters is a byte, spaces and line ends among them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rhnzip.errors import TrainingError
from rhnzip.training.data import read_text

MILLION = 1_000_000
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Corpus:
    """A published corpus.

    Attributes:
        split: lengths of train, valid and test in bytes; None where each is a file.
        sha256: of the whole, where it is known.
        symbols: different bytes in it.
    """

    split: tuple[int, int, int] | None
    sha256: str | None
    symbols: int


CORPORA = {
    "enwik8": Corpus(
        split=(90 * MILLION, 5 * MILLION, 5 * MILLION),
        sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        symbols=205,
    ),
    "text8": Corpus(split=(90 * MILLION, 5 * MILLION, 5 * MILLION), sha256=None, symbols=27),
    "ptb": Corpus(split=None, sha256=None, symbols=50),
}


def read_corpus(name: str, path: Path) -> dict[str, bytes]:
    """Train, valid and test parts of a corpus.

    Args:
        name: a key of `CORPORA`.
        path: the file, or for `ptb` the folder of `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`; each
            may be packed as `.xz`.

    Raises:
        TrainingError: it cannot be read, or is not that corpus.
    """
    corpus = CORPORA[name]
    if corpus.split is None:
        parts = {part: _read_part(path, f"{name}.{part}.txt") for part in PARTS}
        whole = b"".join(parts.values())
    else:
        whole = read_text(path)
        if len(whole) != sum(corpus.split):
            raise TrainingError(f"{path} has {len(whole):,} bytes; {name} has {sum(corpus.split):,}")
        first, second = corpus.split[0], corpus.split[0] + corpus.split[1]
        parts = {"train": whole[:first], "valid": whole[first:second], "test": whole[second:]}
    if corpus.sha256 and hashlib.sha256(whole).hexdigest() != corpus.sha256:
        raise TrainingError(f"{path} is not {name}: its SHA-256 is another")
    if len(set(whole)) != corpus.symbols:
        raise TrainingError(f"{path} is not {name}: {len(set(whole))} different bytes, not {corpus.symbols}")
    return parts


def _read_part(folder: Path, name: str) -> bytes:
    packed = folder / f"{name}.xz"
    return read_text(packed if packed.exists() else folder / name)


def write_corpus(name: str, path: Path, folder: Path) -> Path:
    """Write the parts of a corpus into `folder`, with a mix that trains on the first; returns the mix.

    Raises:
        TrainingError: see `read_corpus`; or a file cannot be written.
    """
    parts = read_corpus(name, path)
    mix = folder / f"{name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, text in parts.items():
            (folder / f"{name}.{part}").write_bytes(text)
        mix.write_text(
            f'[[source]]\nname = "{name}"\nfiles = ["{name}.train"]\nordered = true\n\n'
            f'[valid]\nvalid = "{name}.valid"\n',
            "utf-8",
        )
    except OSError as error:
        raise TrainingError(f"cannot write into {folder}: {error.strerror or error}") from error
    return mix
