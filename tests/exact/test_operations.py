"""The reference backend's coding path runs only torch operations that every device rounds alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rhnzip.exact import product
from rhnzip.exact.backend import known_answer
from rhnzip.exact.reference import ReferenceBackend

INTEGERS = {torch.bool, torch.int8, torch.int16, torch.int32, torch.int64}

# Moves or makes data, or compares it: nothing is rounded.
DATA = {
    "alias",
    "arange",
    "cat",
    "clone",
    "copy_",
    "detach",
    "empty",
    "eq",
    "equal",
    "expand",
    "fill_",
    "full",
    "ge",
    "gt",
    "index",
    "index_put_",
    "index_select",
    "le",
    "lift_fresh",
    "lt",
    "ne",
    "ones",
    "permute",
    "scalar_tensor",
    "select",
    "slice",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "where",
    "zero_",
    "zeros",
    "zeros_like",
    "_unique2",
    "_unsafe_view",
}
# One IEEE operation for each element, or the choice of one of the operands.
ARITHMETIC = {"abs", "add", "add_", "amax", "amin", "clamp", "div", "mul", "mul_", "neg", "round", "sub"}
INTEGER_ONLY = {
    "__and__",
    "__lshift__",
    "__rshift__",
    "_int_mm",
    "bitwise_and",
    "floor_divide",
    "index_add",
    "randint",
    "rsub",
    "sum",
}


class Forbidden(AssertionError):
    pass


def judge(name: str, overload: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise Forbidden unless the operation gives the same bits on every device."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    integers = all(t.dtype in INTEGERS for t in tensors)
    if name == "_to_copy":
        target = kwargs.get("dtype") or tensors[0].dtype
        # To float64 and back is only right around a square root.
        known = INTEGERS | {torch.float32, torch.float64}
        if target not in known or tensors[0].dtype not in known:
            raise Forbidden(f"{name} {tensors[0].dtype} to {target}")
    elif name == "sqrt":
        if tensors[0].dtype != torch.float64:
            raise Forbidden("sqrt is only right in float64, rounded to float32 afterwards")
    elif name == "mm":
        portable = all(t.dtype == torch.float32 and t.abs().max() <= 127 for t in tensors)
        whole = all(torch.equal(t, t.round()) for t in tensors)
        if not (portable and whole and args[0].shape[1] <= product.PORTABLE_INNER):
            raise Forbidden("mm of what may need rounding")
    elif name in INTEGER_ONLY:
        if not integers:
            raise Forbidden(f"{name} of floats")
    elif name in ARITHMETIC:
        if kwargs.get("alpha", 1) != 1:
            raise Forbidden(f"{name} with alpha")
        if integers:
            if name == "div" and kwargs.get("rounding_mode") != "floor":
                raise Forbidden("division of integers that gives floats")
            if any(isinstance(a, float) for a in args):
                raise Forbidden(f"{name} of integers and a float")
        else:
            if kwargs.get("rounding_mode") or (name == "round" and overload != "default"):
                raise Forbidden(f"{name} with an option")
            operands = [a for a in args if isinstance(a, Tensor | int | float)]
            if name not in {"amax", "amin"} and any(
                not isinstance(a, Tensor) or a.dtype != torch.float32 for a in operands
            ):
                raise Forbidden(f"{name} of float32 and something else")
    elif name not in DATA:
        raise Forbidden(f"{name} is not on the list")


class CodingPath(TorchDispatchMode):
    """Runs operations that `judge` lets pass and remembers their names."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _, name, overload = str(function).split(".")
        judge(name, overload, args, kwargs or {})
        self.seen.add(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("portable", [False, True])
def test_reference_runs_allowed_operations_only(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if portable:
        monkeypatch.setattr(product, "fast_product_is_right", lambda *_: False)
    with CodingPath() as path:
        known_answer(ReferenceBackend())
    assert {"div", "round", "clamp", "where", "amax", "sum", "index"} <= path.seen
    assert "mm" in path.seen if portable else path.seen & {"mm", "_int_mm"}


def floats(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


FORBIDDEN: dict[str, Callable[[Tensor], object]] = {
    "add with alpha": lambda x: torch.add(x, x, alpha=2),
    "add of a Python float": lambda x: x + 0.1,
    "add of float64": lambda x: x.double() + x.double(),
    "addcdiv": lambda x: torch.addcdiv(x, x, x),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "any in bfloat16": lambda x: x.bfloat16(),
    "cumsum": lambda x: x.cumsum(0),
    "division by a Python number": lambda x: x / 3.0,
    "division of integers": lambda x: torch.arange(3) / torch.arange(1, 4),
    "exp": torch.exp,
    "floor division of floats": lambda x: torch.div(x, x, rounding_mode="floor"),
    "lerp": lambda x: torch.lerp(x, x, x),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "log": torch.log,
    "mean": torch.mean,
    "norm": lambda x: torch.linalg.vector_norm(x),
    "power": lambda x: x**0.5,
    "product of floats": lambda x: x @ x,
    "product too deep for float32": lambda x: torch.ones(1, 1041) @ torch.ones(1041, 1),
    "reciprocal": torch.reciprocal,
    "round to decimals": lambda x: torch.round(x, decimals=2),
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: torch.softmax(x, 0),
    "sqrt": torch.sqrt,
    "sub with alpha": lambda x: torch.sub(x, x, alpha=2),
    "subtraction from a Python float": lambda x: 1.0 - x,
    "sum": torch.sum,
    "sum of a dimension": lambda x: x.sum(0),
    "tanh": torch.tanh,
    "variance": torch.var,
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_operation_is_found(name: str) -> None:
    with pytest.raises(Forbidden), CodingPath():
        FORBIDDEN[name](floats(4, 4))


ALLOWED: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (x + x) * x - x / x,
    "clamp and round": lambda x: torch.round(torch.clamp(x, -torch.ones(()), torch.ones(()))).to(torch.int8),
    "integer division": lambda x: torch.div(torch.arange(3), torch.arange(1, 4), rounding_mode="floor"),
    "integer sum": lambda x: x.to(torch.int64).sum(0),
    "portable product": lambda x: x.round() @ x.round(),
    "square root through float64": lambda x: x.abs().double().sqrt().float(),
    "where": lambda x: torch.where(x > x.amax(), x, torch.zeros(())),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_operation_passes(name: str) -> None:
    with CodingPath():
        ALLOWED[name](floats(4, 4))
