"""Files as a command treats them: an output appears whole or not at all, and only where nothing is lost."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rhnzip.errors import RhnzipError


def open_input(path: str) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        RhnzipError: `path` is a directory, a device, a socket or a pipe.
        OSError: it cannot be opened.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise RhnzipError("is a directory; rhnzip takes files (pack it with tar first)")
    if not stat.S_ISREG(mode):
        raise RhnzipError("is not a regular file; to read it all the same, redirect it and give FILE as -")
    return open(path, "rb")


def is_replaceable(path: str) -> bool:
    """Tell whether a file written to `path` stays there: not so for a device or a pipe."""
    return not os.path.exists(path) or os.path.isfile(path)


@contextmanager
def open_output(path: str, *, like: os.stat_result | None, force: bool) -> Iterator[BinaryIO]:
    """Give a file to write; it takes its place at `path` when the block ends, and is removed if that fails.

    Until then it stands under another name in the same directory. What it holds is on the disk before the
    name changes, so a crash leaves the old file or the new one. A symbolic link is followed; a device or a
    pipe is written directly.

    Args:
        path: where the file goes.
        like: the status of the input, which must not be `path` itself; mode bits and time of modification are
            copied from it as far as the file system allows. None: the mode is the user's default.
        force: whether a file that is already at `path` may be replaced.

    Raises:
        RhnzipError: `path` is the input, a directory, or taken.
        OSError: it cannot be written.
    """
    target = os.path.realpath(path)
    try:
        existing = os.stat(target)
    except FileNotFoundError:
        existing = None
    if existing is not None:
        if like is not None and os.path.samestat(existing, like):
            raise RhnzipError("would be overwritten by its own output; choose another with -o")
        if stat.S_ISDIR(existing.st_mode):
            raise RhnzipError(f"cannot write {path}: it is a directory")
        if not stat.S_ISREG(existing.st_mode):
            with open(target, "wb") as sink:
                yield sink
            return
    if existing is not None and not force:
        raise _taken(path)

    directory = os.path.dirname(target)
    part = os.path.join(directory, f".rhnzip-{secrets.token_hex(8)}.part")
    # The mode is set from the start: what only the owner may read is at no time open to others.
    mode = 0o666 if like is None else stat.S_IMODE(like.st_mode) & 0o777
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as sink:
            yield sink
            sink.flush()
            if like is not None:
                with suppress(OSError):
                    os.chmod(part, mode)
                    os.utime(part, ns=(like.st_atime_ns, like.st_mtime_ns))
            os.fsync(sink.fileno())
        if not force and os.path.lexists(target):
            raise _taken(path)
        os.replace(part, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.filename == part:
            error.filename, error.filename2 = path, None
        raise
    _sync_directory(directory)


def _taken(path: str) -> RhnzipError:
    return RhnzipError(f"{path} already exists; -f overwrites it")


def _sync_directory(path: str) -> None:
    """Put a changed name on the disk, where the system lets a directory be opened."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
