"""The training loop: truncated BPTT with carried state over shuffled text.

Legend: B lanes, T steps of a segment, V symbols.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhnzip.errors import TrainingError
from rhnzip.exact.floating import FloatOps, native_dtype
from rhnzip.models.cell import START_SYMBOL, Cell
from rhnzip.models.evaluation import Bytes, float_bpc, in_lanes, segment_loss
from rhnzip.models.registry import make_cell
from rhnzip.training.data import Mix
from rhnzip.training.recipe import Recipe

CHECKPOINT_FORMAT = 1
LOG_FIELDS = ("bytes", "seconds", "rate", "train_bpc", "gradient_norm")


@dataclass(frozen=True)
class Report:
    """One line of progress: bytes trained, bits per byte since the last line, speed, validation if just made."""

    bytes_done: int
    bpc: float
    bytes_per_second: float
    valid: dict[str, float]


class Trainer:
    """Owns parameters, optimiser state and position; `run` advances them, `save` and `load` keep them.

    A run resumed from a checkpoint takes the same next step as one that was never stopped: positions, masks and
    resets are functions of the step number and the recipe's seed.
    """

    def __init__(self, cell: Cell, recipe: Recipe, mix: Mix, device: str = "cpu", dtype: torch.dtype | None = None):
        """Draw initial parameters and lay the text out in lanes."""
        self.cell, self.recipe, self.mix = cell, recipe, mix
        self.device = torch.device(device)
        self.dtype = dtype or native_dtype(self.device)
        initial = cell.initial(torch.Generator().manual_seed(recipe.seed))
        self.parameters = {name: value.to(self.device).requires_grad_() for name, value in initial.items()}
        self.optimizer = self._make_optimizer()
        self.text: Bytes = in_lanes(mix.train, recipe.lanes)
        self.segments_per_epoch = (self.text.shape[1] - 1) // recipe.segment
        if self.segments_per_epoch < 1:
            raise TrainingError("the training text is shorter than one segment per lane; use fewer lanes")
        self.step = 0
        self.seconds = 0.0
        self.state = self._zero_state(recipe.lanes)
        self.history: list[dict[str, float]] = []

    @property
    def bytes_done(self) -> int:
        """Training bytes seen."""
        return self.step * self.recipe.lanes * self.recipe.segment

    def _make_optimizer(self) -> torch.optim.Optimizer:
        recipe, values = self.recipe, list(self.parameters.values())
        if recipe.optimizer == "sgd":
            return torch.optim.SGD(values, lr=recipe.rate, weight_decay=recipe.weight_decay)
        return torch.optim.AdamW(
            values, lr=recipe.rate, betas=(0.9, 0.98), eps=1e-8, weight_decay=recipe.weight_decay, fused=True
        )

    def _zero_state(self, lanes: int) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(lanes, width, device=self.device) for width in self.cell.state_widths())

    def _masks(self, generator: torch.Generator) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor] | None]:
        recipe, config, lanes = self.recipe, self.cell.config, self.recipe.lanes

        def mask(rate: float, width: int) -> Tensor:
            keep = torch.rand(lanes, width, generator=generator) >= rate
            return (keep / (1 - rate)).to(self.device)

        named = {"hidden": (recipe.drop_hidden, config.units), "output": (recipe.drop_output, config.units)}
        masks = {name: mask(rate, width) for name, (rate, width) in named.items() if rate}
        if not (recipe.drop_symbol or recipe.drop_input):
            return masks, None
        return masks, (mask(recipe.drop_symbol, config.vocabulary), mask(recipe.drop_input, config.embedding))

    def train_segment(self) -> tuple[float, float]:
        """Take one optimiser step over B x T bytes; returns (bits per byte, gradient norm)."""
        recipe = self.recipe
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + self.step)
        position = (self.step % self.segments_per_epoch) * recipe.segment
        window = self.text[:, position : position + recipe.segment + 1]
        data = torch.from_numpy(window.T.astype(np.int64)).to(self.device)
        previous, target = data[:-1].contiguous(), data[1:]
        fresh = torch.rand(recipe.lanes, generator=generator) < (1.0 if self.step == 0 else recipe.reset)
        fresh = fresh.to(self.device)
        previous[0] = torch.where(fresh, START_SYMBOL, previous[0])
        keep = (~fresh).float().unsqueeze(1)
        state = tuple((s * keep).requires_grad_() for s in self.state)

        masks, input_masks = self._masks(generator)
        folded = self.cell.fold(self.parameters)
        ops = FloatOps(folded.linears, folded.tables, dtype=self.dtype, masks=masks)
        symbols = previous if input_masks is None else self.cell.embed(self.parameters, previous, *input_masks)
        loss, state = segment_loss(self.cell, ops, symbols, target, state)
        (loss * recipe.segment).backward()
        ops.finish()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), recipe.clip)
        bits = float(loss.detach()) / math.log(2)
        if not math.isfinite(bits) or not math.isfinite(float(norm)):
            raise TrainingError(f"the loss is not a number at byte {self.bytes_done:,}; lower the learning rate")
        rate = recipe.rate_at(self.bytes_done, self.segments_per_epoch * recipe.lanes * recipe.segment)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = tuple(s.detach() for s in state)
        self.step += 1
        return bits, float(norm)

    def validate(self, limit: int = 1 << 18) -> dict[str, float]:
        """Bits per byte of the first `limit` bytes of each held-out text, in float."""
        return {
            name: float_bpc(self.cell, self.parameters, text[:limit], dtype=self.dtype)
            for name, text in self.mix.valid.items()
        }

    def run(
        self,
        directory: Path,
        report: Callable[[Report], None],
        *,
        log_every: float = 1 << 20,
        valid_every: float = 1 << 23,
        save_every_seconds: float = 300.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train until `recipe.total_bytes`, logging to `log.csv` and saving `checkpoint.pt` in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        bits_sum, segments, norm = 0.0, 0, 0.0
        began = saved = time.perf_counter()
        next_log = self.bytes_done + log_every
        next_valid = self.bytes_done + valid_every
        seconds_before, bytes_before = self.seconds, self.bytes_done
        with _csv_log(directory / "log.csv") as write:
            while self.bytes_done < self.recipe.total_bytes:
                bits, norm = self.train_segment()
                bits_sum, segments = bits_sum + bits, segments + 1
                now = time.perf_counter()
                self.seconds = seconds_before + now - began
                ended = self.bytes_done >= self.recipe.total_bytes or stop()
                if self.bytes_done >= next_log or ended:
                    valid = {}
                    if self.bytes_done >= next_valid or ended:
                        valid = self.validate()
                        next_valid += valid_every
                    speed = (self.bytes_done - bytes_before) / (now - began)
                    row = {"bytes": self.bytes_done, "seconds": round(self.seconds, 1)}
                    row |= {"rate": self.optimizer.param_groups[0]["lr"], "train_bpc": round(bits_sum / segments, 4)}
                    row |= {"gradient_norm": round(norm, 3)}
                    write(row | {f"valid_{name}": round(value, 4) for name, value in valid.items()})
                    report(Report(self.bytes_done, bits_sum / segments, speed, valid))
                    bits_sum, segments = 0.0, 0
                    next_log += log_every
                if now - saved > save_every_seconds or ended:
                    self.save(directory / "checkpoint.pt")
                    saved = now
                if ended:
                    return

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically: to a temporary file, synced, then renamed."""
        temporary = path.with_suffix(".tmp")
        content = {
            "format": CHECKPOINT_FORMAT,
            "config": asdict(self.cell.config),
            "recipe": asdict(self.recipe),
            "data": list(self.mix.description),
            "step": self.step,
            "seconds": self.seconds,
            "parameters": {name: value.detach() for name, value in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "state": list(self.state),
        }
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same cell and recipe.

        Raises:
            TrainingError: unreadable, or of another run.
        """
        content = read_checkpoint(path, self.device)
        for key, mine in (("config", asdict(self.cell.config)), ("recipe", asdict(self.recipe))):
            theirs = content[key]
            different = [name for name in mine if mine[name] != theirs.get(name)]
            if different:
                raise TrainingError(f"{path} is of another run: its {key} differs in {', '.join(different)}")
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(content["parameters"][name])
        self.optimizer.load_state_dict(content["optimizer"])
        self.state = tuple(content["state"])
        self.step, self.seconds = content["step"], content["seconds"]


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint's content.

    Raises:
        TrainingError: missing, damaged, or of an unknown format.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise TrainingError(f"cannot read the checkpoint {path}: {error}") from error
    if content.get("format") != CHECKPOINT_FORMAT:
        raise TrainingError(f"{path} has checkpoint format {content.get('format')}, not {CHECKPOINT_FORMAT}")
    return content


def cell_of(content: dict[str, Any]) -> Cell:
    """The cell a checkpoint holds parameters of."""
    return make_cell(content["config"])


class _csv_log:
    """Appends rows to a CSV file; columns for validation appear when first written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Callable[[dict[str, float]], None]:
        self.file = open(self.path, "a", newline="")
        return self.write

    def write(self, row: dict[str, float]) -> None:
        writer = csv.writer(self.file)
        if self.file.tell() == 0:
            writer.writerow([*LOG_FIELDS, "valid"])
        valid = " ".join(f"{k.removeprefix('valid_')}={v}" for k, v in row.items() if k.startswith("valid_"))
        writer.writerow([*(row[name] for name in LOG_FIELDS), valid])
        self.file.flush()

    def __exit__(self, *_: object) -> None:
        self.file.close()


