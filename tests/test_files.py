"""Outputs appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rhnzip.errors import RhnzipError
from rhnzip.files import is_replaceable, open_input, open_output


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_output_appears_when_the_block_ends(tmp_path: Path) -> None:
    with open_output(str(tmp_path / "out"), like=None, force=False) as sink:
        sink.write(b"new")
        assert "out" not in names(tmp_path)
    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.parametrize("error", [RhnzipError("bad"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_failed_block_keeps_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with pytest.raises(type(error)), open_output(str(out), like=None, force=True) as sink:
        sink.write(b"new")
        raise error
    assert names(tmp_path) == {"out"}
    assert out.read_bytes() == b"old"


def test_taken_name_is_refused_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with pytest.raises(RhnzipError, match="already exists"), open_output(str(out), like=None, force=False):
        pytest.fail("the block must not run")
    with open_output(str(out), like=None, force=True) as sink:
        sink.write(b"new")
    assert out.read_bytes() == b"new"


def test_name_taken_meanwhile_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        pytest.raises(RhnzipError, match="already exists"),
        open_output(str(out), like=None, force=False) as sink,
    ):
        sink.write(b"new")
        out.write_bytes(b"another program's")
    assert names(tmp_path) == {"out"}
    assert out.read_bytes() == b"another program's"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_input_is_never_overwritten(tmp_path: Path, link: object) -> None:
    source, alias = tmp_path / "source", tmp_path / "alias"
    source.write_bytes(b"precious")
    assert callable(link)
    link(source, alias)
    for path in (source, alias):
        with (
            pytest.raises(RhnzipError, match="overwritten"),
            open_output(str(path), like=source.stat(), force=True),
        ):
            pytest.fail("the block must not run")
    assert source.read_bytes() == b"precious"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_mode_and_time_are_copied(tmp_path: Path, mode: int) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.write_bytes(b"")
    os.utime(source, ns=(1_000_000_007, 2_000_000_009))
    source.chmod(mode)
    with open_output(str(out), like=source.stat(), force=False) as sink:
        part = next(path for path in tmp_path.iterdir() if path != source)
        assert stat.S_IMODE(part.stat().st_mode) & ~mode == 0, "open to others while it is written"
        sink.write(b"x" * 100_000)
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert out.stat().st_mtime_ns == 2_000_000_009


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    link.symlink_to(real)
    with open_output(str(link), like=None, force=False) as sink:
        sink.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_device_is_written_not_replaced() -> None:
    with open_output(os.devnull, like=None, force=False) as sink:
        sink.write(b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert not is_replaceable(os.devnull)


def test_errors_name_the_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    missing, below_file, directory = tmp_path / "no" / "out", tmp_path / "file" / "out", tmp_path
    for path, kind in ((missing, FileNotFoundError), (below_file, NotADirectoryError)):
        with pytest.raises(kind) as caught, open_output(str(path), like=None, force=False):
            pytest.fail("the block must not run")
        assert caught.value.filename == str(path)
    with pytest.raises(RhnzipError, match="directory"), open_output(str(directory), like=None, force=True):
        pytest.fail("the block must not run")


def test_input_must_be_a_regular_file(tmp_path: Path) -> None:
    with pytest.raises(RhnzipError, match="is a directory"):
        open_input(str(tmp_path))
    with pytest.raises(RhnzipError, match="not a regular file"):
        open_input(os.devnull)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RhnzipError, match="not a regular file"):
        open_input(str(tmp_path / "pipe"))
    with pytest.raises(FileNotFoundError):
        open_input(str(tmp_path / "missing"))


def test_is_replaceable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert is_replaceable(str(tmp_path / "file"))
    assert is_replaceable(str(tmp_path / "missing"))
