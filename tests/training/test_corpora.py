from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from rhnzip.cli import cli
from rhnzip.errors import TrainingError
from rhnzip.training import corpora
from rhnzip.training.corpora import CORPORA, read_corpus, write_corpus
from rhnzip.training.data import load_mix

SMALL = bytes(range(97, 123)) + b" "
TEXT = SMALL * 40
SPLIT = (900, 90, 90)


@pytest.fixture(autouse=True)
def small_text8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpora.CORPORA, "text8", replace(CORPORA["text8"], split=SPLIT))


def test_split(tmp_path: Path) -> None:
    path = tmp_path / "text8"
    path.write_bytes(TEXT)
    parts = read_corpus("text8", path)
    assert [len(part) for part in parts.values()] == list(SPLIT)
    assert b"".join(parts.values()) == TEXT


def test_mix_keeps_the_order(tmp_path: Path) -> None:
    (tmp_path / "text8").write_bytes(TEXT)
    mix = load_mix(write_corpus("text8", tmp_path / "text8", tmp_path / "out"), 1)
    assert mix.train.tobytes() == TEXT[:900]
    assert mix.valid["valid"].tobytes() == TEXT[900:990]
    assert (tmp_path / "out" / "text8.test").read_bytes() == TEXT[990:]


def test_penn_treebank_is_three_files(tmp_path: Path) -> None:
    symbols = bytes(range(33, 83))
    (tmp_path / "ptb.train.txt.xz").write_bytes(lzma.compress(symbols * 3))
    (tmp_path / "ptb.valid.txt").write_bytes(symbols)
    (tmp_path / "ptb.test.txt").write_bytes(symbols[:5])
    assert read_corpus("ptb", tmp_path) == {"train": symbols * 3, "valid": symbols, "test": symbols[:5]}
    (tmp_path / "ptb.test.txt").write_bytes(b"z!")
    with pytest.raises(TrainingError, match="51 different bytes, not 50"):
        read_corpus("ptb", tmp_path)


def test_what_is_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text8"
    with pytest.raises(TrainingError, match="cannot read"):
        read_corpus("text8", path)
    path.write_bytes(TEXT[:-1])
    with pytest.raises(TrainingError, match="1,079 bytes; text8 has 1,080"):
        read_corpus("text8", path)
    path.write_bytes(TEXT)
    monkeypatch.setitem(corpora.CORPORA, "text8", replace(CORPORA["text8"], split=SPLIT, sha256="0" * 64))
    with pytest.raises(TrainingError, match="its SHA-256 is another"):
        read_corpus("text8", path)


def test_command(tmp_path: Path) -> None:
    (tmp_path / "text8").write_bytes(TEXT)
    arguments = ["corpus", "text8", str(tmp_path / "text8"), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "text8.toml: rhnzip train" in result.output
    assert CliRunner().invoke(cli, ["corpus", "enwik9", "x", "-o", "y"]).exit_code == 2
