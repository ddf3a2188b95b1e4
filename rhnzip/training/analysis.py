"""The papers' analyses of a trained network on a text, in float.

* gates: mean activity of the transform gates by depth over time (Zilly et al. 2017, figure 5)
* lesion: bits per byte with one layer at a time held to carry (section 6; after Srivastava et al. 2015)
* spectrum: eigenvalues of the temporal Jacobian and its Gersgorin circles (eqs. 10-15)
* gradients: norm of a loss's gradient by the states some steps before (Suarez 2017; Mujika et al. 2017)
* change: how far each state vector moves in a step (Mujika et al. 2017, section 5)
* words: bits by position in the word (Mujika et al. 2017, section 5)

The first two are of networks of highway layers, the others of any.

Legend: B lanes, T steps, H units, L depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rhnzip.errors import TrainingError
from rhnzip.exact.floating import FloatOps, Product, Rows, sigmoid, tanh
from rhnzip.models.cell import START_SYMBOL, Cell, Folded
from rhnzip.models.evaluation import Bytes, in_lanes

LANES = 8
DISTANCE = 50
JACOBIANS = 4
LONGEST_WORD = 12
Array = NDArray[np.float64]


class _WatchedOps(FloatOps):
    """Keeps the transform gates of every highway layer; can hold one layer to carry."""

    def __init__(self, folded: Folded, lesion: int | None = None) -> None:
        super().__init__(folded.linears, folded.tables, fused=False)
        self.gates: list[Tensor] = []
        self._lesion, self._layer = lesion, 0

    def begin(self) -> None:
        """Start a step."""
        self.gates, self._layer = [], 0

    def highway(self, product: Product, rows: Rows, s: Tensor, scale: str) -> Tensor:
        a = self.output(product, rows)
        units = s.shape[-1]
        h, t = tanh(a[:, :units]), sigmoid(a[:, units:])
        if self._layer == self._lesion:
            t = torch.zeros_like(t)
        self._layer += 1
        self.gates.append(t)
        return (h - s) * t + s


@dataclass
class Analysis:
    """What was found; arrays are empty where the network has nothing of the kind.

    Attributes:
        bpc: bits per byte of the text.
        gates: (L, T), mean transform gate by depth and step.
        lesions: (L,), bits per byte more when a layer is held to carry.
        eigenvalues: (n, H), of temporal Jacobians at some steps.
        centres: (H,), of the Gersgorin circles of the last of them.
        radii: (H,).
        gradients: (vectors of the state, DISTANCE), norm by distance in steps, relative to the nearest.
        change: (vectors of the state,), root mean square of a step's change.
        words: (LONGEST_WORD,), bits of the first, second, ... byte of a word.
    """

    bpc: float = 0.0
    gates: Array = field(default_factory=lambda: np.zeros((0, 0)))
    lesions: Array = field(default_factory=lambda: np.zeros(0))
    eigenvalues: NDArray[np.complex128] = field(default_factory=lambda: np.zeros((0, 0), np.complex128))
    centres: Array = field(default_factory=lambda: np.zeros(0))
    radii: Array = field(default_factory=lambda: np.zeros(0))
    gradients: Array = field(default_factory=lambda: np.zeros((0, 0)))
    change: Array = field(default_factory=lambda: np.zeros(0))
    words: Array = field(default_factory=lambda: np.zeros(0))

    def summary(self) -> dict[str, Any]:
        """The figures as plain numbers, for a table or JSON."""
        radius = np.abs(self.eigenvalues).max(axis=1) if self.eigenvalues.size else np.zeros(0)
        return {
            "bits_per_byte": round(self.bpc, 4),
            "gate_activity_by_depth": _rounded(self.gates.mean(axis=1)) if self.gates.size else [],
            "lesion_bits_by_depth": _rounded(self.lesions),
            "spectral_radius": _rounded(radius),
            "gradient_by_distance": [_rounded(row[[0, 1, 4, 9, 24, 49]]) for row in self.gradients],
            "change_by_state": _rounded(self.change),
            "bits_by_position_in_word": _rounded(self.words),
        }


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def analyse(cell: Cell, folded: Folded, text: Bytes, steps: int = 400) -> Analysis:
    """Run every analysis on the first `steps` bytes of `LANES` lanes of a text.

    Raises:
        TrainingError: the text is too short.
    """
    data = torch.from_numpy(in_lanes(text, LANES)[:, :steps].T.astype(np.int64))
    if len(data) < 2 * DISTANCE:
        raise TrainingError(f"an analysis needs a text of at least {2 * DISTANCE * LANES} bytes")
    found = Analysis()
    bits, gates, states = _run(cell, folded, data)
    found.bpc = float(bits.mean())
    found.gates = gates
    found.change = np.array(
        [math.sqrt(float((s[1:] - s[:-1]).square().mean())) for s in (torch.stack(x) for x in states)]
    )
    found.words = _by_position(bits, data)
    found.lesions = np.array(
        [float(_run(cell, folded, data, layer)[0].mean()) - found.bpc for layer in range(len(gates))]
    )
    at = np.linspace(len(data) // 2, len(data) - 2, JACOBIANS).astype(int)
    jacobians = [_jacobian(cell, folded, data[t], [x[t][:1] for x in states]) for t in at]
    found.eigenvalues = np.array([np.linalg.eigvals(jacobian) for jacobian in jacobians])
    last = jacobians[-1]
    found.centres = np.diag(last).copy()
    found.radii = np.abs(last).sum(axis=1) - np.abs(found.centres)
    found.gradients = _by_distance(cell, folded, data, states)
    return found


@torch.no_grad()
def _run(
    cell: Cell, folded: Folded, data: Tensor, lesion: int | None = None
) -> tuple[Array, Array, list[list[Tensor]]]:
    """Bits (T, B), gates (L, T), and the states before each step."""
    ops = _WatchedOps(folded, lesion)
    state = tuple(torch.zeros(LANES, width) for width in cell.state_widths())
    previous = torch.full_like(data[0], START_SYMBOL)
    bits, gates, states = [], [], [[s] for s in state]
    for row in data:
        ops.begin()
        state = cell.step(ops, previous, state)
        gates.append([float(t.mean()) for t in ops.gates])
        bits.append(functional.cross_entropy(cell.head(ops, state), row, reduction="none") / math.log(2))
        for kept, s in zip(states, state, strict=True):
            kept.append(s)
        previous = row
    return torch.stack(bits).double().numpy(), np.array(gates).T, states


def _by_position(bits: Array, data: Tensor) -> Array:
    letters = (data.numpy() > ord(" ")) & (data.numpy() != 127)
    total, count = np.zeros(LONGEST_WORD), np.zeros(LONGEST_WORD)
    for lane in range(data.shape[1]):
        position = -1
        for t in range(len(data)):
            position = position + 1 if letters[t, lane] else -1
            if 0 <= position < LONGEST_WORD:
                total[position] += bits[t, lane]
                count[position] += 1
    return total / np.maximum(count, 1)


def _jacobian(cell: Cell, folded: Folded, symbols: Tensor, state: list[Tensor]) -> Array:
    """Derivative of one lane's whole state by the whole state a step before."""
    widths = [s.shape[1] for s in state]
    ops = FloatOps(folded.linears, folded.tables, fused=False)

    def step(flat: Tensor) -> Tensor:
        parts = tuple(flat.unsqueeze(0).split(widths, dim=1))
        return torch.cat(cell.step(ops, symbols[:1], parts), dim=1)[0]

    jacobian: Any = torch.autograd.functional.jacobian(step, torch.cat(state, dim=1)[0])
    return np.asarray(jacobian.double().numpy())


def _by_distance(cell: Cell, folded: Folded, data: Tensor, states: list[list[Tensor]]) -> Array:
    """Norm of the last loss's gradient by each state vector, by distance, relative to the nearest."""
    start = len(data) - DISTANCE
    ops = FloatOps(folded.linears, folded.tables, fused=False)
    state = tuple(x[start].clone().requires_grad_() for x in states)
    met = []
    for t in range(start, len(data)):
        met.append(state)
        state = cell.step(ops, data[t - 1], state)
    loss = functional.cross_entropy(cell.head(ops, state), data[-1], reduction="sum")
    flat = [s for states_at in met for s in states_at]
    gradients = torch.autograd.grad(loss, flat, allow_unused=True)
    norms = np.array([0.0 if g is None else float(g.norm()) for g in gradients]).reshape(DISTANCE, -1)
    norms = norms[::-1].T
    return np.asarray(norms / np.maximum(norms[:, :1], 1e-30))


def picture(found: Analysis, title: str, path: Path) -> None:
    """All analyses on one page.

    Raises:
        TrainingError: matplotlib is not installed, or `path` cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise TrainingError("pictures need matplotlib: pip install 'rhnzip[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle

    figure, ((gates, lesion, circles), (gradients, change, words)) = plt.subplots(2, 3, figsize=(15, 8))
    figure.suptitle(f"{title}: {found.bpc:.3f} bits per byte")
    if found.gates.size:
        image = gates.imshow(found.gates[:, :100], aspect="auto", vmin=0, cmap="viridis")
        figure.colorbar(image, ax=gates)
        lesion.bar(np.arange(1, len(found.lesions) + 1), found.lesions)
    gates.set(title="transform gates, mean", xlabel="step", ylabel="depth")
    lesion.set(title="one layer held to carry", xlabel="depth", ylabel="bits per byte more")
    for centre, radius in list(zip(found.centres, found.radii, strict=True))[:60]:
        circles.add_patch(Circle((centre, 0), radius, fill=False, color="0.85"))
    for values in found.eigenvalues:
        circles.plot(values.real, values.imag, ".", markersize=3)
    circles.set(title="temporal Jacobian: eigenvalues, Gersgorin circles", xlabel="real", aspect="equal")
    for n, row in enumerate(found.gradients):
        gradients.semilogy(np.arange(1, DISTANCE + 1), np.maximum(row, 1e-12), label=f"state {n + 1}")
    gradients.set(title="gradient of a loss by earlier states", xlabel="steps before", ylabel="relative norm")
    gradients.legend(fontsize=7)
    change.bar(np.arange(1, len(found.change) + 1), found.change)
    change.set(title="change of the state in a step", xlabel="state vector", ylabel="root mean square")
    words.plot(np.arange(1, LONGEST_WORD + 1), found.words, "o-")
    words.set(title="bits by position in the word", xlabel="position", ylabel="bits")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        plt.close(figure)
