"""What `import rhnzip` offers."""

from __future__ import annotations

import pytest

import rhnzip
from rhnzip import errors, streams


def test_every_public_name_is_there() -> None:
    assert dir(rhnzip) == sorted(rhnzip.__all__)
    for name in rhnzip.__all__:
        assert getattr(rhnzip, name) is not None
    assert rhnzip.decompress_stream is streams.decompress_stream


def test_every_error_is_public_and_has_one_root() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(rhnzip.__all__)
    assert all(issubclass(getattr(rhnzip, name), rhnzip.RhnzipError) for name in defined)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'expand'"):
        _ = rhnzip.expand  # type: ignore[attr-defined]
