"""The training loop: truncated BPTT with carried state over shuffled text.

Legend: B lanes, T steps of a segment, V symbols.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
CHECKPOINT_KEYS = {"config", "recipe", "data", "step", "seconds", "parameters", "optimizer", "state"}
CHECKPOINT_NAME = "checkpoint.pt"
LOG_NAME = "log.csv"
LOG_FIELDS = ("bytes", "seconds", "rate", "train_bpc", "gradient_norm")


@dataclass(frozen=True)
class Report:
    """One line of progress: bytes trained, bits per byte since the last, speed, validation if just made."""

    bytes_done: int
    bpc: float
    bytes_per_second: float
    valid: dict[str, float]


class Trainer:
    """Owns parameters, optimiser state and position; `run` advances them, `save` and `load` keep them.

    A run resumed from a checkpoint takes the same next step as one that was never stopped: positions, masks
    and resets are functions of the step number and the recipe's seed.
    """

    def __init__(
        self,
        cell: Cell,
        recipe: Recipe,
        mix: Mix,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw initial parameters and lay the text out in lanes.

        Args:
            cell: the network.
            recipe: how to train it.
            mix: on what.
            device: torch's name of where to compute.
            dtype: type of the matrix products; None takes bfloat16 where the device has it in hardware.

        Raises:
            TrainingError: the text is too short or uses bytes outside the network's vocabulary, or there is
                no such device.
        """
        self.cell, self.recipe, self.mix = cell, recipe, mix
        self.device = _usable_device(device)
        self.dtype = dtype or native_dtype(self.device)
        self.text: Bytes = in_lanes(mix.train, recipe.lanes)
        self.segments_per_epoch = (self.text.shape[1] - 1) // recipe.segment
        if self.segments_per_epoch < 1:
            raise TrainingError(
                f"{len(mix.train):,} bytes of training text are less than one segment of {recipe.segment} "
                f"bytes in each of {recipe.lanes} lanes; give more text, fewer lanes or a shorter segment"
            )
        for text in (mix.train, *mix.valid.values()):
            if text.max() >= cell.config.vocabulary:
                raise TrainingError(
                    f"byte {text.max()} in the text is outside the vocabulary of {cell.config.vocabulary}"
                )
        initial = cell.initial(torch.Generator().manual_seed(recipe.seed))
        self.parameters = {name: value.to(self.device).requires_grad_() for name, value in initial.items()}
        self.optimizer = self._make_optimizer()
        self.step = 0
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        self.state = self._zero_state(recipe.lanes)

    @property
    def bytes_done(self) -> int:
        """Training bytes seen."""
        return self.step * self.recipe.lanes * self.recipe.segment

    def _make_optimizer(self) -> torch.optim.Optimizer:
        recipe, values = self.recipe, list(self.parameters.values())
        if recipe.optimizer == "sgd":
            return torch.optim.SGD(values, lr=recipe.rate, weight_decay=recipe.weight_decay)
        # Decay holds the matrices' scale, and with it the gates out of saturation; a bias has no such need.
        groups = [
            {"params": [value for value in values if value.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [value for value in values if value.ndim == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.99), eps=1e-8, fused=True)

    def _zero_state(self, lanes: int) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(lanes, width, device=self.device) for width in self.cell.state_widths())

    def _masks(self, generator: torch.Generator) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor] | None]:
        recipe, config, lanes = self.recipe, self.cell.config, self.recipe.lanes

        def mask(rate: float, width: int) -> Tensor:
            keep = torch.rand(lanes, width, generator=generator) >= rate
            return (keep / (1 - rate)).to(self.device)

        rates = {"hidden": recipe.drop_hidden, "output": recipe.drop_output}
        masks = {
            name: mask(rates[kind], width)
            for name, (kind, width) in self.cell.dropouts().items()
            if rates[kind]
        }
        if not (recipe.drop_symbol or recipe.drop_input):
            return masks, None
        return masks, (mask(recipe.drop_symbol, config.vocabulary), mask(recipe.drop_input, config.embedding))

    def train_segment(self) -> tuple[float, float]:
        """Take one optimiser step over B x T bytes; returns (bits per byte, gradient norm).

        Raises:
            TrainingError: the loss or its gradient is not finite; the parameters are as before.
        """
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
        fresh_masks = torch.Generator(self.device).manual_seed(recipe.seed * 1_000_003 + self.step)
        ops = FloatOps(
            folded.linears,
            folded.tables,
            dtype=self.dtype,
            masks=masks,
            rates={"gate": recipe.drop_gate},
            generator=fresh_masks,
        )
        symbols = previous
        if input_masks is not None:
            symbols = self.cell.embed(self.parameters, previous, *input_masks)
        loss, state = segment_loss(self.cell, ops, symbols, target, state)
        (loss * recipe.segment).backward()
        ops.finish()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), recipe.clip)
        bits = float(loss.detach()) / math.log(2)
        if not math.isfinite(bits) or not math.isfinite(float(norm)):
            raise TrainingError(
                f"the loss is not a number at byte {self.bytes_done:,}; begin again with a lower rate or clip"
            )
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
        log_every: int = 1 << 20,
        valid_every: int = 1 << 23,
        save_every_seconds: float = 300.0,
        progress: Callable[[int], None] = lambda _bytes_done: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train until `recipe.total_bytes`, logging to `log.csv` and saving `checkpoint.pt` in `directory`.

        Args:
            directory: made if absent; the log of a resumed run is continued.
            report: called for each line of the log.
            log_every: training bytes between two lines.
            valid_every: training bytes between two validations; the end of the run has one in any case.
            save_every_seconds: time between two checkpoints; the end of the run has one in any case.
            progress: called with the bytes done after each step.
            stop: asked after each step; once true, the run is saved and left.

        Raises:
            TrainingError: the loss is not a number, or `directory` cannot be written.
        """
        bits_sum, segments = 0.0, 0
        began = saved = time.perf_counter()
        seconds_before, bytes_before = self.seconds, self.bytes_done
        next_log, next_valid = _next(self.bytes_done, log_every), _next(self.bytes_done, valid_every)
        with _csv_log(directory, self.bytes_done) as write:
            while self.bytes_done < self.recipe.total_bytes:
                bits, norm = self.train_segment()
                bits_sum, segments = bits_sum + bits, segments + 1
                now = time.perf_counter()
                self.seconds = seconds_before + now - began
                progress(self.bytes_done)
                finished = self.bytes_done >= self.recipe.total_bytes
                stopped = not finished and stop()
                if self.bytes_done >= next_log or finished or stopped:
                    valid = {}
                    if finished or (self.bytes_done >= next_valid and not stopped):
                        valid = self.validate()
                        next_valid = _next(self.bytes_done, valid_every)
                    row = (self.bytes_done, round(self.seconds, 1), self.optimizer.param_groups[0]["lr"])
                    figures = " ".join(f"{name}={bpc:.4f}" for name, bpc in valid.items())
                    write((*row, round(bits_sum / segments, 4), round(norm, 3), figures))
                    speed = (self.bytes_done - bytes_before) / (now - began)
                    report(Report(self.bytes_done, bits_sum / segments, speed, valid))
                    bits_sum, segments = 0.0, 0
                    next_log = _next(self.bytes_done, log_every)
                if now - saved > save_every_seconds or finished or stopped:
                    self.save(directory / CHECKPOINT_NAME)
                    saved = now
                if stopped:
                    return

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically: to a temporary file, synced, then renamed.

        Raises:
            TrainingError: it cannot be written; an older checkpoint at `path` is whole.
        """
        temporary = path.with_name(path.name + ".tmp")
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
            "history": self.history,
        }
        try:
            with open(temporary, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            if isinstance(error, (OSError, RuntimeError)):  # torch reports a failed write as either
                raise TrainingError(f"cannot write the checkpoint {path}: {error}") from error
            raise

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same cell, recipe and text.

        Raises:
            TrainingError: unreadable, or of another run.
        """
        content = read_checkpoint(path, self.device)
        for key, mine in (("config", asdict(self.cell.config)), ("recipe", asdict(self.recipe))):
            theirs = content[key]
            different = [
                f"{name} ({theirs.get(name)!r}, not {value!r})"
                for name, value in mine.items()
                if value != theirs.get(name)
            ]
            if different:
                raise TrainingError(f"{path} is of another run: its {key} differs in {', '.join(different)}")
        text = list(self.mix.description)
        if content["data"] != text:
            raise TrainingError(f"{path} is of another run: it was trained on {content['data']}, not {text}")
        self._take_parameters(content, path)
        try:
            self.optimizer.load_state_dict(content["optimizer"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise TrainingError(f"the checkpoint {path} is damaged: {error}") from error
        self.state = tuple(content["state"])
        self.step, self.seconds = content["step"], content["seconds"]
        self.history = content.get("history", [])

    def start_from(self, path: Path) -> None:
        """Begin a run of another recipe or text with the parameters that an earlier run left.

        Raises:
            TrainingError: unreadable, or of another cell.
        """
        content = read_checkpoint(path, self.device)
        if content["config"] != asdict(self.cell.config):
            raise TrainingError(f"{path} holds a network of other sizes: {content['config']}")
        self._take_parameters(content, path)
        earlier = {"recipe": content["recipe"], "data": content["data"], "step": content["step"]}
        self.history = [*content.get("history", []), earlier]

    def _take_parameters(self, content: dict[str, Any], path: Path) -> None:
        try:
            with torch.no_grad():
                for name, value in self.parameters.items():
                    value.copy_(content["parameters"][name])
        except (KeyError, RuntimeError) as error:
            raise TrainingError(f"the checkpoint {path} is damaged: {error}") from error


def _usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TrainingError(f"cannot compute on the device {name!r}: {reason}") from error
    return device


def _next(done: int, every: int) -> int:
    """Return the first multiple of `every` above `done`: the same for a resumed run and one never stopped."""
    return (done // every + 1) * every


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint's content.

    Raises:
        TrainingError: missing, damaged, or of an unknown format.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise TrainingError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
    with file:
        try:
            content = torch.load(file, map_location=device, weights_only=True)
        except Exception as error:  # whatever torch's unpickler meets in a damaged file
            raise TrainingError(f"{path} is not a checkpoint, or is damaged") from error
    if not isinstance(content, dict) or "format" not in content:
        raise TrainingError(f"{path} is not a checkpoint of rhnzip")
    if content["format"] != CHECKPOINT_FORMAT:
        raise TrainingError(f"{path} has checkpoint format {content['format']}, not {CHECKPOINT_FORMAT}")
    missing = CHECKPOINT_KEYS - content.keys()
    if missing:
        raise TrainingError(f"the checkpoint {path} is damaged: it has no {', '.join(sorted(missing))}")
    return content


def cell_of(content: dict[str, Any]) -> Cell:
    """The cell a checkpoint holds parameters of."""
    return make_cell(content["config"])


def recipe_of(content: dict[str, Any]) -> Recipe:
    """The recipe a checkpoint was trained by.

    Raises:
        TrainingError: it has settings that this release does not know.
    """
    try:
        return Recipe(**content["recipe"])
    except TypeError as error:
        raise TrainingError(f"the checkpoint's recipe is not one of this release: {error}") from error


@contextmanager
def _csv_log(directory: Path, bytes_done: int) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    """Give a function that appends a row to the log; rows later than `bytes_done` are dropped first.

    They are those of a run that went on for a while after the checkpoint it is resumed from.
    """
    path = directory / LOG_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        kept = []
        if bytes_done and path.exists():
            with open(path, newline="") as old:
                rows = list(csv.reader(old))[1:]
            whole = [row for row in rows if len(row) == len(LOG_FIELDS) + 1 and row[0].isdigit()]
            kept = [row for row in whole if int(row[0]) <= bytes_done]
        file = open(path, "w", newline="")
    except OSError as error:
        raise TrainingError(f"cannot write the log {path}: {error.strerror or error}") from error
    with file:
        writer = csv.writer(file)

        def write(row: tuple[Any, ...]) -> None:
            writer.writerow(row)
            file.flush()

        for row in ((*LOG_FIELDS, "valid"), *kept):
            write(tuple(row))
        yield write
