"""The float side of the primitives: for training (autograd) and for float BPC. Never used on a coding path.

Legend: B lanes, T steps, K inner size of a linear map, N its outputs, H units, V symbols.

Two implementations of the same pointwise functions live here. Plain torch operations run on any device. On a
CPU, `highway` goes through one fused kernel each way, and the gradients of weights are collected and computed
with one large product per segment instead of one small product per step: about three times faster end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rhnzip.exact.constants import NORM_EPSILON, TANH_LIMIT, TANH_P, TANH_Q


def tanh(x: Tensor) -> Tensor:
    """Rational tanh of the exact side, in float: same constants, so both sides compute the same function."""
    x = x.clamp(-TANH_LIMIT, TANH_LIMIT)
    u = x * x
    top = x * (TANH_P[0] + u * (TANH_P[1] + u * TANH_P[2]))
    return top / (1.0 + u * (TANH_Q[0] + u * (TANH_Q[1] + u * TANH_Q[2])))


def sigmoid(x: Tensor) -> Tensor:
    """Logistic function through the rational tanh: 1/2 + tanh(x/2)/2."""
    return 0.5 + 0.5 * tanh(0.5 * x)


def native_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 where the device multiplies it in hardware, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    has_bf16 = (
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and "avx512" in torch.backends.cpu.get_cpu_capability().lower()
    )
    return torch.bfloat16 if has_bf16 else torch.float32


@dataclass
class Rows:
    """Rows of a table to be added to a product: `table[index[b]]` for lane b, or row 0 where `index` is None.

    `values`, shape (B, N), stands in for both when the rows were computed beforehand (input dropout).
    """

    name: str
    index: Tensor | None = None
    values: Tensor | None = None


@dataclass
class Product:
    """A matrix product x W not yet carried out: the pointwise primitive that consumes it does so."""

    name: str
    x: Tensor


@dataclass
class _Deferred:
    """Inputs, added rows (of table `rows`, if any) and output gradients of one linear map over a segment."""

    rows: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def met(self, x: Tensor, rows: Rows | None) -> int:
        """Keep the input of one more product; returns where its gradient goes."""
        self.inputs.append(x)
        self.gradients.append(x)  # until backward puts the gradient here
        if rows is not None:
            self.rows = rows.name
            if rows.index is not None:
                self.indices.append(rows.index)
        return len(self.gradients) - 1


class FloatOps:
    """Float forward of every primitive over one set of parameters.

    Args:
        linears: weights by name, float32, shape (K, N).
        tables: row tables by name, float32, shape (rows, N); a bias is a table of one row.
        dtype: type of the matrix products; sums and pointwise functions are float32.
        masks: variational dropout masks by value name, shape (B, K), already divided by the keep probability.
        fused: use the CPU kernels; None means when they apply (CPU tensors).
        ranges: filled with the largest magnitude of each named value, to choose its int8 scale by.
        rates: rates of `fresh_dropout` by name.
        generator: of fresh masks, zoneout's among them; None (not in training) takes expectations.
    """

    def __init__(
        self,
        linears: Mapping[str, Tensor],
        tables: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        masks: Mapping[str, Tensor] | None = None,
        fused: bool | None = None,
        ranges: dict[str, float] | None = None,
        rates: Mapping[str, float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Cast the weights once for the segment."""
        first = next(iter(linears.values()))
        self.fused = first.device.type == "cpu" if fused is None else fused
        self.dtype = dtype
        self._ranges = ranges
        self._masks = dict(masks or {})
        self._rates = dict(rates or {})
        self._generator = generator
        self._leaves = dict(linears)
        self._tables = dict(tables)
        if self.fused:
            self._weights = {name: w.detach().to(dtype) for name, w in linears.items()}
            self._rows = {name: t.detach().contiguous() for name, t in tables.items()}
        else:
            self._weights = {name: w.to(dtype) for name, w in linears.items()}
            self._rows = self._tables
        self._deferred: dict[str, _Deferred] = {}
        # Tells autograd that fused results have gradients even where the state they start from has none.
        self._live = torch.zeros((), requires_grad=any(w.requires_grad for w in linears.values()))

    def rows(self, name: str, index: Tensor | None = None) -> Rows:
        """Rows of table `name`: one per lane by `index` (int64, shape (B,)), or its single row for all lanes.

        A float `index`, shape (B, N), is taken as the rows themselves (computed beforehand, under input
        dropout).
        """
        if index is not None and index.is_floating_point():
            return Rows(name, values=index)
        return Rows(name, index)

    def dropout(self, name: str, x: Tensor) -> Tensor:
        """Multiply by this segment's variational mask for `name`, shape (B, K), where there is one.

        `x` may hold several steps stacked, (T B, K): the mask is the same at every step (Gal 2015).
        """
        mask = self._masks.get(name)
        return x if mask is None else x * mask.repeat(len(x) // len(mask), 1)

    def linear(self, name: str, x: Tensor) -> Product:
        """Product of `x`, shape (B, K), with weight `name`."""
        return Product(name, x)

    def _observe(self, name: str, x: Tensor) -> Tensor:
        if self._ranges is not None:
            self._ranges[name] = max(self._ranges.get(name, 0.0), float(x.abs().max()))
        return x

    def _gather(self, rows: Rows) -> Tensor:
        if rows.values is not None:
            return rows.values
        table = self._tables[rows.name]
        return table if rows.index is None else table.index_select(0, rows.index)

    def output(self, product: Product, rows: Rows) -> Tensor:
        """Logits x W + rows in float32, shape (B, N), through plain autograd."""
        weight = self._leaves[product.name].to(self.dtype) if self.fused else self._weights[product.name]
        return (product.x.to(self.dtype) @ weight).float() + self._gather(rows)

    def highway(self, product: Product, rows: Rows, s: Tensor, scale: str) -> Tensor:
        """Highway update with coupled carry gate: (h - s) t + s (Zilly et al. 2017, eqs. 6-9, c = 1 - t).

        The product has N = 2H columns, h before t. `s` and the result have shape (B, H).
        """
        if self.fused and rows.values is None:
            apply: Any = _FusedHighway.apply
            result: Tensor = apply(product.x, s, self._live, self, product.name, rows)
            return result
        a = self.output(product, rows)
        units = s.shape[-1]
        h, t = tanh(a[:, :units]), sigmoid(a[:, units:])
        return self._observe(scale, (h - s) * t + s)

    def highway_uncoupled(self, product: Product, rows: Rows, s: Tensor, scale: str) -> Tensor:
        """Highway update with its own carry gate: h t + s c (Zilly et al. 2017, eq. 6); N = 3H: h, t, c."""
        a = self.output(product, rows)
        units = s.shape[-1]
        h, t, c = tanh(a[:, :units]), sigmoid(a[:, units : 2 * units]), sigmoid(a[:, 2 * units :])
        return self._observe(scale, h * t + s * c)

    def affine(self, product: Product, rows: Rows | None = None) -> Tensor:
        """A product as a value, with rows added if there are any."""
        inside = self.fused and (rows is None or rows.values is None)
        if inside:
            apply: Any = _FusedAffine.apply
            result: Tensor = apply(product.x, self._live, self, product.name, rows)
            return result
        if rows is None:
            return (product.x.to(self.dtype) @ self._weights[product.name]).float()
        return self.output(product, rows)

    def lookup(self, rows: Rows) -> Tensor:
        """Rows as a value; one for all lanes has shape (1, N)."""
        return self._gather(rows)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Columns start..stop of a value."""
        return x[:, start:stop]

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Values side by side, in order."""
        return torch.cat(list(values), dim=1)

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return tanh(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """Logistic function."""
        return sigmoid(x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum."""
        return x + y

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """Product, element by element."""
        return x * y

    def mix(self, gate: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gate between two values: (x - y) gate + y."""
        return (x - y) * gate + y

    def zoneout(self, x: Tensor, y: Tensor, share: float) -> Tensor:
        """Take the new value `x` with probability `share`, else the old one `y` (Krueger et al. 2017)."""
        if self._generator is None:
            return x * share + y * (1 - share)
        return torch.where(self._chosen(x, share), x, y)

    def fresh_dropout(self, name: str, x: Tensor) -> Tensor:
        """Dropout with a new mask at every call."""
        rate = self._rates.get(name, 0.0)
        if not rate or self._generator is None:
            return x
        return x * self._chosen(x, 1 - rate) / (1 - rate)

    def _chosen(self, x: Tensor, share: float) -> Tensor:
        return torch.rand(x.shape, generator=self._generator, device=x.device) < share

    def scaled_norm(self, x: Tensor, gain: Tensor, shift: Tensor, parts: int) -> Tensor:
        """Layer norm of each of so many equal parts of a value, times a gain, plus a shift."""
        normed = functional.layer_norm(x.unflatten(1, (parts, -1)), (x.shape[1] // parts,), eps=NORM_EPSILON)
        return normed.flatten(1) * gain + shift

    def lstm_cell(self, a: Tensor, c: Tensor) -> Tensor:
        """New cell of an LSTM, i, j, f, o the quarters of `a`."""
        i, j, f, _ = a.chunk(4, dim=1)
        return c * sigmoid(f) + sigmoid(i) * tanh(j)

    def lstm_output(self, x: Tensor, a: Tensor) -> Tensor:
        """Output of an LSTM, o the last quarter of `a`."""
        return tanh(x) * sigmoid(a.chunk(4, dim=1)[3])

    def quantise(self, x: Tensor, scale: str) -> Tensor:
        """Measure a value that linear maps are about to read; the exact side gives it its int8 form."""
        return self._observe(scale, x)

    def finish(self) -> None:
        """Add the collected gradients of weights and tables; call once after `backward()`."""
        for name, record in self._deferred.items():
            if not record.gradients:
                continue
            x, gradient = torch.cat(record.inputs), torch.cat(record.gradients)
            _accumulate(self._leaves[name], (x.t() @ gradient).float())
            if not record.rows:
                continue
            table = self._tables[record.rows]
            if record.indices:
                chosen = functional.one_hot(torch.cat(record.indices), len(table)).to(self.dtype)
                total = (chosen.t() @ gradient).float()
            else:
                total = gradient.sum(0, keepdim=True, dtype=torch.float32)
            _accumulate(table, total)
        self._deferred.clear()


def _accumulate(leaf: Tensor, gradient: Tensor) -> None:
    if not leaf.is_leaf:  # folded from parameters: autograd takes it from here
        leaf.backward(gradient)
        return
    leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


class _FusedHighway(torch.autograd.Function):
    """Coupled highway update on a CPU: one product and one kernel each way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, s: Tensor, _live: Tensor, ops: FloatOps, name: str, rows: Rows
    ) -> Tensor:
        from rhnzip.exact.floating_kernels import highway_forward, narrow

        ctx.one_input = x is s
        x = narrow(x.detach(), ops.dtype)
        a = x @ ops._weights[name]
        s_new, h, t = highway_forward(a, ops._rows[rows.name], rows.index, s.detach())
        if any(ctx.needs_input_grad):
            ctx.slot = ops._deferred.setdefault(name, _Deferred()).met(x, rows)
            ctx.save_for_backward(s.detach(), h, t)
            ctx.ops, ctx.name = ops, name
        return s_new

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        from rhnzip.exact.floating_kernels import highway_backward, widen_add

        s, h, t = ctx.saved_tensors
        ops: FloatOps = ctx.ops
        da, ds = highway_backward(gradients[0].contiguous(), s, h, t, ops.dtype)
        ops._deferred[ctx.name].gradients[ctx.slot] = da
        dx = da @ ops._weights[ctx.name].t()
        if ctx.one_input:  # no dropout between state and product: one sum instead of two tensors
            return None, widen_add(dx, ds), None, None, None, None
        return widen_add(dx, torch.zeros_like(ds)), ds, None, None, None, None


class _FusedAffine(torch.autograd.Function):
    """A product on a CPU, rows added: the gradients of its weight and table are left to `finish`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _live: Tensor, ops: FloatOps, name: str, rows: Rows | None) -> Tensor:
        x = x.detach().to(ops.dtype)
        out = (x @ ops._weights[name]).float()
        if rows is not None:
            table = ops._rows[rows.name]
            out += table if rows.index is None else table.index_select(0, rows.index)
        if any(ctx.needs_input_grad):
            ctx.slot = ops._deferred.setdefault(name, _Deferred()).met(x, rows)
            ctx.ops, ctx.name = ops, name
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ops: FloatOps = ctx.ops
        da = gradients[0].to(ops.dtype)
        ops._deferred[ctx.name].gradients[ctx.slot] = da
        return (da @ ops._weights[ctx.name].t()).float(), None, None, None, None
