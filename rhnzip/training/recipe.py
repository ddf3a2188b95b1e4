"""What a training run does, in one frozen dataclass; the whole of it is stored in checkpoints and model files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of truncated back-propagation through time.

    Attributes:
        optimizer: `adam`, or `sgd` as in Zilly et al. 2017.
        rate: learning rate at its peak.
        schedule: `cosine` (warm-up, then cosine to `final_rate`) or `zilly` (constant, then divided by `decay` each
            epoch after `decay_after` epochs).
        warmup: share of the run over which the rate rises linearly.
        final_rate: rate at the end of `cosine`, as a share of the peak.
        decay: divisor per epoch of `zilly`.
        decay_after: epochs before it starts.
        total_bytes: length of the run in training bytes.
        lanes: B, sequences trained in parallel.
        segment: T, truncation length of back-propagation.
        clip: largest global norm of the gradient of the loss in nats, averaged over lanes and summed over the T
            steps of a segment, as the papers count it.
        weight_decay: L2 penalty coefficient (sgd) or decoupled decay (adam).
        drop_symbol: variational dropout of whole symbols ("x"), of embedding units ("i"), of the recurrent state
            ("h") and of the output ("o"): one mask per lane and segment, the same at every depth and step.
        drop_input: see `drop_symbol`.
        drop_hidden: see `drop_symbol`.
        drop_output: see `drop_symbol`.
        reset: chance per lane and segment that the state restarts from zero, as it does at the head of a coded lane.
        seed: of the weights, the order of the text and the masks.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 2e-3
    schedule: Literal["cosine", "zilly"] = "cosine"
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
    reset: float = 0.02
    seed: int = 1

    @property
    def dropout(self) -> bool:
        """Whether any dropout rate is above zero."""
        return max(self.drop_symbol, self.drop_input, self.drop_hidden, self.drop_output) > 0

    def rate_at(self, bytes_done: int, epoch_bytes: int) -> float:
        """Learning rate after `bytes_done` training bytes of an epoch length of `epoch_bytes`.

        >>> Recipe(rate=1.0, warmup=0.0, total_bytes=100).rate_at(50, 10) == (1 + 0.01) / 2
        True
        """
        if self.schedule == "zilly":
            return float(self.rate / self.decay ** max(0, bytes_done // epoch_bytes - self.decay_after))
        done = bytes_done / self.total_bytes
        if done < self.warmup:
            return self.rate * (done + 1e-3) / (self.warmup + 1e-3)
        rest = min(1.0, (done - self.warmup) / (1 - self.warmup))
        return self.rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * rest)))
