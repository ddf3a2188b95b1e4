"""How kernels are compiled: the only place that calls numba's `njit` for the coding path.

`fastmath` stays off (numba then contracts and reorders nothing), division follows IEEE
(`error_model="numpy"`), the GIL is released. Compiled code is kept in the user's cache under a hash of the
kernel sources: numba's own cache does not notice when a helper in another file changes. Without a writable
cache, kernels compile anew in each process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit, types
from numba.extending import intrinsic

SOURCES = ("constants.py", "compiled.py", "kernels.py", "elementwise.py")


def cache_directory() -> Path | None:
    """Folder for compiled kernels: $RHNZIP_CACHE_DIR or the user's cache; None if it cannot be written to."""
    base = os.environ.get("RHNZIP_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    root = Path(base) if base else Path(cache) / "rhnzip"
    digest = hashlib.sha256(numba.__version__.encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    path = root / f"kernels-{digest.hexdigest()[:16]}"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    # Cached code is unpickled: only a folder of this user's own may be trusted.
    mine = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    return path if mine and os.access(path, os.W_OK) else None


_CACHE = cache_directory()


def compiled(*, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel, or with `inline` a helper that kernels absorb."""

    def decorate(function: Callable[..., Any]) -> Any:
        if inline:
            return njit(inline="always", error_model="numpy")(function)
        # numba reads its cache folder from a global setting when the decorator runs; put it back for others.
        config: Any = numba.config
        before = config.CACHE_DIR
        try:
            config.CACHE_DIR = str(_CACHE or "")
            return njit(error_model="numpy", nogil=True, cache=_CACHE is not None)(function)
        finally:
            config.CACHE_DIR = before

    return decorate


def _float_of_bits(_context: Any, bits: Any) -> Any:
    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        from llvmlite import ir

        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), code


float_of_bits: Any = intrinsic(_float_of_bits)
"""The float32 with these bits (int32): a reinterpretation, no arithmetic."""
