from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from rhnzip.errors import TrainingError
from rhnzip.training.data import PIECE, load_data, load_mix, read_text


def write_mix(folder: Path, text: str) -> Path:
    path = folder / "mix.toml"
    path.write_text(text)
    return path


def lines(letter: str, count: int) -> bytes:
    return b"".join(f"{letter} {number}\n".encode() for number in range(count))


def test_mix_takes_every_piece_as_often_as_told(tmp_path: Path) -> None:
    one, two = lines("one", 20_000), lines("two", 5_000)
    (tmp_path / "one.txt").write_bytes(one)
    (tmp_path / "two.txt.xz").write_bytes(lzma.compress(two))
    (tmp_path / "held").write_bytes(b"held out")
    mix = load_mix(
        write_mix(
            tmp_path,
            '[[source]]\nname = "first"\nfiles = ["one.*"]\n'
            '[[source]]\nfiles = ["two.txt.xz"]\nrepeat = 2\n'
            '[valid]\nheld = "held"\n',
        ),
        seed=1,
    )
    assert sorted(mix.train.tobytes().split(b"\n")) == sorted((one + 2 * two).split(b"\n"))
    assert mix.train.tobytes() != one + 2 * two  # pieces are shuffled
    assert {name: text.tobytes() for name, text in mix.valid.items()} == {"held": b"held out"}
    assert mix.description == (f"first: {len(one):,} bytes x 1", f"two.txt.xz: {len(two):,} bytes x 2")


def test_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(lines("a", 50_000))
    path = write_mix(tmp_path, '[[source]]\nfiles = ["a"]\ncrlf = 0.5')
    first, again, other = (load_mix(path, seed).train for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[: len(other)], other[: len(first)])


def test_bytes_limits_a_source_across_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 100)
    mix = load_mix(write_mix(tmp_path, '[[source]]\nfiles = ["a", "b", "c"]\nbytes = 150'), 1)
    assert sorted(mix.train.tobytes()) == sorted(b"a" * 100 + b"b" * 50)
    shuffled = '[[source]]\nfiles = ["a", "b", "c"]\nbytes = 100\nshuffle = true'
    assert len({load_mix(write_mix(tmp_path, shuffled), seed).train.tobytes() for seed in range(9)}) == 3


def test_crlf_changes_line_ends_of_a_share_of_pieces(tmp_path: Path) -> None:
    text = lines("some words", 20 * PIECE // 16)
    (tmp_path / "a").write_bytes(text)
    mix = load_mix(write_mix(tmp_path, '[[source]]\nfiles = ["a"]\ncrlf = 0.5'), 1)
    train = mix.train.tobytes()
    assert 0.2 < train.count(b"\r\n") / train.count(b"\n") < 0.8
    assert sorted(train.replace(b"\r", b"")) == sorted(text)


def test_a_text_is_its_own_mix(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_bytes(bytes(range(100)))
    mix = load_data(path, seed=1)
    assert mix.train.tobytes() == bytes(range(95))
    assert mix.valid["valid"].tobytes() == bytes(range(95, 100))
    assert mix.description == ("plain.txt: 95 bytes x 1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"the mix has no \[\[source\]\]"),
        ("source = 3", r"the mix has no \[\[source\]\]"),
        ("source = []", r"the mix has no \[\[source\]\]"),
        ("[[source", "cannot read the mix"),
        ("[[source]]\nbytes = 3", "number 1: files must be a list of paths"),
        ('[[source]]\nfiles = "a"', "files must be a list of paths"),
        ('[[source]]\nfiles = ["a"]\nbyte = 3', "unknown setting 'byte'"),
        ('[[source]]\nfiles = ["a"]\nbytes = 0', "bytes must be a whole number of at least 1, not 0"),
        ('[[source]]\nfiles = ["a"]\nrepeat = true', "repeat must be a whole number"),
        ('[[source]]\nfiles = ["a"]\ncrlf = 2', "crlf must be a number in 0..1, not 2"),
        ('[[source]]\nfiles = ["a"]\nshuffle = 1', "shuffle must be true or false, not 1"),
        ('[[source]]\nfiles = ["a"]\nname = 1', "name must be text, not 1"),
        ('[[source]]\nfiles = ["a"]\n[[source]]\nfiles = ["b*"]', r"no file matches 'b\*'"),
        ('[[source]]\nfiles = ["/a"]', "'/a' must be relative to the mix"),
        ('[[source]]\nfiles = ["empty"]', "empty is empty"),
        ('[[source]]\nfiles = ["a"]\n[valid]\nx = "absent"', "cannot read the text .*absent"),
        ('[[source]]\nfiles = ["a"]\n[valid]\n"x y" = "a"', "'x y': want a name without spaces"),
        ('valid = 3\n[[source]]\nfiles = ["a"]', r"\[valid\] must hold lines"),
        ('[[source]]\nfiles = ["a"]\n[test]\nx = "a"', "unknown entry 'test'"),
    ],
)
def test_bad_mix_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "empty").touch()
    with pytest.raises(TrainingError, match=message):
        load_mix(write_mix(tmp_path, text), 1)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.xz").write_bytes(b"not xz")
    (tmp_path / "tiny").write_bytes(b"tiny")
    (tmp_path / "latin.toml").write_bytes(b"\xe4 = 1")
    with pytest.raises(TrainingError, match=r"cannot read the text .*bad\.xz"):
        read_text(tmp_path / "bad.xz")
    with pytest.raises(TrainingError, match="cannot read the text .*absent"):
        load_data(tmp_path / "absent", 1)
    with pytest.raises(TrainingError, match=r"cannot read the mix .*absent\.toml"):
        load_data(tmp_path / "absent.toml", 1)
    with pytest.raises(TrainingError, match=r"cannot read the mix .*latin\.toml"):
        load_data(tmp_path / "latin.toml", 1)
    with pytest.raises(TrainingError, match="has only 4 bytes"):
        load_data(tmp_path / "tiny", 1)
