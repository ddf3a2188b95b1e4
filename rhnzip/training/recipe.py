"""What a training run does, in one frozen dataclass; all of it is stored in checkpoints and model files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rhnzip.errors import TrainingError

Optimizer = Literal["adam", "sgd"]
Schedule = Literal["cosine", "zilly"]


def _at_least(least: int) -> tuple[Callable[[Any], bool], str]:
    return lambda value: least <= value < 1 << 62, f"a whole number of at least {least}"


_POSITIVE = (lambda value: 0 < value < math.inf), "a number above 0"
_SHARE = (lambda value: 0 <= value <= 1), "in 0..1"
_RATE = (lambda value: 0 <= value < 1), "at least 0 and below 1"

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "optimizer": (lambda value: value in get_args(Optimizer), f"one of {', '.join(get_args(Optimizer))}"),
    "rate": _POSITIVE,
    "schedule": (lambda value: value in get_args(Schedule), f"one of {', '.join(get_args(Schedule))}"),
    "warmup": _RATE,
    "final_rate": _SHARE,
    "decay": (lambda value: 1 <= value < math.inf, "a number of at least 1"),
    "decay_after": _at_least(0),
    "total_bytes": _at_least(1),
    "lanes": _at_least(1),
    "segment": _at_least(1),
    "clip": _POSITIVE,
    "weight_decay": (lambda value: 0 <= value < math.inf, "a number of at least 0"),
    "drop_symbol": _RATE,
    "drop_input": _RATE,
    "drop_hidden": _RATE,
    "drop_output": _RATE,
    "drop_gate": _RATE,
    "reset": _SHARE,
    "seed": (lambda value: 0 <= value < 1 << 32, "in 0..4294967295"),
}


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of truncated back-propagation through time.

    Attributes:
        optimizer: `adam`, or `sgd` as in Zilly et al. 2017.
        rate: learning rate at its peak.
        schedule: `cosine` (warm-up, then cosine to `final_rate`) or `zilly` (constant for `decay_after`
            epochs, then divided by `decay` at each further one).
        warmup: share of the run over which the rate rises linearly.
        final_rate: rate at the end of `cosine`, as a share of the peak.
        decay: divisor per epoch of `zilly`.
        decay_after: epochs at the full rate.
        total_bytes: length of the run in training bytes.
        lanes: B, sequences trained in parallel.
        segment: T, truncation length of back-propagation.
        clip: largest global norm of the gradient of the loss in nats, averaged over lanes and summed over the
            T steps of a segment, as the papers count it.
        weight_decay: L2 penalty coefficient (sgd) or decoupled decay (adam).
        drop_symbol: variational dropout of whole symbols ("x"), of embedding units ("i"), of the recurrent
            state ("h") and of the output ("o"): one mask per lane and segment, the same at every depth and
            step.
        drop_input: see `drop_symbol`.
        drop_hidden: see `drop_symbol`.
        drop_output: see `drop_symbol`.
        drop_gate: dropout of the transform gate with a fresh mask each time (HyperRHN; Suarez 2017).
        reset: chance per lane and segment that the state restarts from zero, as it does at the head of a
            coded lane.
        seed: of the weights, the order of the text and the masks.

    Raises:
        TrainingError: names the first value that is out of its range.
    """

    optimizer: Optimizer = "adam"
    rate: float = 2e-3
    schedule: Schedule = "cosine"
    warmup: float = 0.01
    final_rate: float = 0.01
    decay: float = 1.03
    decay_after: int = 5
    total_bytes: int = 1 << 24
    lanes: int = 64
    segment: int = 64
    clip: float = 10.0
    weight_decay: float = 0.0
    drop_symbol: float = 0.0
    drop_input: float = 0.0
    drop_hidden: float = 0.0
    drop_output: float = 0.0
    drop_gate: float = 0.0
    reset: float = 0.02
    seed: int = 1

    def __post_init__(self) -> None:
        """Check every value."""
        for name, (good, wanted) in _RULES.items():
            value = getattr(self, name)
            if not good(value):
                raise TrainingError(f"{name.replace('_', '-')} must be {wanted}, not {value!r}")

    def rate_at(self, bytes_done: int, epoch_bytes: int) -> float:
        """Learning rate after `bytes_done` training bytes of an epoch length of `epoch_bytes`.

        >>> Recipe(rate=1.0, warmup=0.0, total_bytes=100).rate_at(50, 10) == (1 + 0.01) / 2
        True
        >>> zilly = Recipe(rate=8.0, schedule="zilly", decay=2.0, decay_after=2)
        >>> [zilly.rate_at(epoch * 10, 10) for epoch in range(5)]
        [8.0, 8.0, 4.0, 2.0, 1.0]
        """
        if self.schedule == "zilly":
            return float(self.rate / self.decay ** max(0, bytes_done // epoch_bytes - self.decay_after + 1))
        done = bytes_done / self.total_bytes
        if done < self.warmup:
            return self.rate * (done + 1e-3) / (self.warmup + 1e-3)
        rest = min(1.0, (done - self.warmup) / (1 - self.warmup))
        return self.rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * rest)))
