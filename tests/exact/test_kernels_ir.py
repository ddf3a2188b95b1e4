"""What the compiler made of the CPU kernels: only binary32 operations, each rounded on its own."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from rhnzip.exact import elementwise, kernels
from rhnzip.exact.backend import general_answer, known_answer
from rhnzip.exact.cpu import CpuBackend

MODULES = (kernels, elementwise)
PUBLIC = {
    f"{module.__name__.rpartition('.')[2]}.{name}": kernel
    for module in MODULES
    for name, kernel in vars(module).items()
    if isinstance(kernel, Dispatcher) and not name.startswith("_")
}

ARITHMETIC = r"(?:fadd|fsub|fmul|fdiv|frem|fneg|fcmp)"
FLAGS = r"(?:fast|contract|reassoc|afn|arcp|nnan|ninf|nsz)"
IR_FORBIDDEN = {
    "float64 arithmetic": rf"\b{ARITHMETIC}\b[^=\n]*\bdouble\b",
    "float64 conversion": r"\b(?:fpext|fptrunc)\b|\b[su]itofp\b.* to (?:<\d+ x )?double",
    "half precision": r"\b(?:half|bfloat)\b",
    "fused multiply-add": r"@llvm\.(?:fma|fmuladd)|@fmaf?\b",
    "fast-math flag": rf"\b(?:{ARITHMETIC}|call|select|phi|fptosi|sitofp)\s+{FLAGS}\b",
    # The machine's square root rounds correctly; all other float functions are approximations.
    "library function": r"@llvm\.(?!sqrt\.)(?:pow|powi|exp2?|exp10|log(?:2|10)?|sin|cos|tan|tanh)\.",
    "call out of the kernel": r"\bcall\b[^@\n]*@(?!llvm\.|NRT_|numba_|sqrtf\()\w+",
    "reduction in float": r"@llvm\.vector\.reduce\.f(?:add|mul)",
}
ASSEMBLY_FORBIDDEN = {
    "fused multiply-add": r"\bv?fn?m(?:add|sub)\w*(?:ss|ps|sd|pd)\b|\bf(?:madd|mla|mls|nmadd)\b",
    "approximate reciprocal": r"\bv?(?:rcp|rsqrt)\d*[sp][sd]\b",
    "float64 arithmetic": r"\bv?(?:add|sub|mul|div|sqrt)[sp]d\b",
    "float64 conversion": r"\bv?cvt(?:t?s[sd]2s[sd]|ps2pd|pd2ps|t?pd2\w+|s[iq]2sd|dq2pd|qq2pd)\b",
    "vector library": r"svml|\b(?:expf?|expm1f?|logf?|powf?|tanhf?|fmaf?)\b",
}


def native_body(text: str, start: str, end: str) -> str:
    """Cut the kernel itself out of a module: the wrapper that unpacks Python's arguments may use float64."""
    bodies = re.findall(rf"{start}.*?{end}", text, re.DOTALL | re.MULTILINE)
    native = [body for body in bodies if "_ZN7cpython" not in body.splitlines()[0]]
    assert len(native) == 1 < len(bodies)
    return str(native[0])


def findings(kernel: Any, signature: Any) -> set[str]:
    """Compile once more, outside the cache (which keeps no IR), and name what breaks the exactness rule."""
    options = {name: value for name, value in kernel.targetoptions.items() if name != "nopython"}
    fresh = numba.njit(**options)(kernel.py_func)
    fresh.compile(signature)
    (compiled,) = fresh.signatures
    ir = native_body(fresh.inspect_llvm(compiled), r"^define [^\n]*@(?:_ZN|\"_ZN)", r"^\}")
    assembly = native_body(fresh.inspect_asm(compiled), r"^_ZN\w+:", r"^\.Lfunc_end\d+:")
    found = {name for name, pattern in IR_FORBIDDEN.items() if re.search(pattern, ir)}
    return found | {name for name, pattern in ASSEMBLY_FORBIDDEN.items() if re.search(pattern, assembly)}


@pytest.fixture(scope="module")
def driven() -> dict[str, Any]:
    """All public kernels, after a run that calls each with the types the codec uses."""
    known_answer(CpuBackend())
    general_answer(CpuBackend())
    return PUBLIC


def test_there_are_kernels() -> None:
    defined = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name in re.findall(r"^@compiled\(\)\ndef (\w+)", inspect.getsource(module), re.MULTILINE)
    }
    assert defined == set(PUBLIC) != set()


@pytest.mark.parametrize("name", PUBLIC)
def test_kernel_is_exact(name: str, driven: dict[str, Any]) -> None:
    kernel = driven[name]
    assert kernel.signatures, "the known answer does not run this kernel"
    for signature in kernel.signatures:
        assert findings(kernel, signature) == set()


def like(function: Any, **options: Any) -> Any:
    return numba.njit(error_model="numpy", nogil=True, **options)(function)


def multiply_add(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i] * x[i] + x[i]


def wide_literal(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i] * 0.1


def wide_integer(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i] * i


def library(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = math.tanh(x[i])


def exponential(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = math.exp(x[i])


def float_sum(x: Any, out: Any) -> None:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i]
    out[0] = total


def square_root(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = np.float32(math.sqrt(x[i]))


VECTORS = (numba.float32[::1], numba.float32[::1])


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (multiply_add, {"fastmath": True}, "fast-math flag"),
        (multiply_add, {"fastmath": {"contract"}}, "fast-math flag"),
        (float_sum, {"fastmath": {"reassoc"}}, "fast-math flag"),
        (square_root, {"fastmath": True}, "fast-math flag"),
        (wide_literal, {}, "float64 arithmetic"),
        (wide_literal, {}, "float64 conversion"),
        (wide_integer, {}, "float64 arithmetic"),
        (library, {}, "call out of the kernel"),
        (exponential, {}, "library function"),
    ],
)
def test_inexact_kernel_is_found(function: Any, options: dict[str, Any], expected: str) -> None:
    assert expected in findings(like(function, **options), VECTORS)


@pytest.mark.parametrize("function", [multiply_add, square_root])
def test_exact_kernel_passes(function: Any) -> None:
    assert findings(like(function), VECTORS) == set()


@pytest.mark.parametrize(
    "line",
    [
        "\tvfmadd213ps\t%zmm1, %zmm2, %zmm3",
        "\tvfnmadd231ss\t%xmm1, %xmm2, %xmm3",
        "\tvfmsub132ps\t%ymm1, %ymm2, %ymm3",
        "\tvrcp14ps\t%zmm1, %zmm2",
        "\trcpps\t%xmm1, %xmm2",
        "\tvrsqrt14ss\t%xmm1, %xmm2, %xmm3",
        "\tvmulpd\t%zmm1, %zmm2, %zmm3",
        "\tvcvtss2sd\t%xmm1, %xmm2, %xmm3",
        "\tcallq\t*%rax # tanhf",
    ],
)
def test_forbidden_instruction_is_found(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in ASSEMBLY_FORBIDDEN.values())
