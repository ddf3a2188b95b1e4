from __future__ import annotations

import csv
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rhnzip.errors import TrainingError
from rhnzip.exact.floating import FloatOps
from rhnzip.models.evaluation import segment_loss
from rhnzip.models.rhn import RHN, RHNConfig
from rhnzip.training.data import Mix
from rhnzip.training.loop import Report, Trainer, read_checkpoint, recipe_of
from rhnzip.training.recipe import Recipe

MakeTrainer = Callable[..., Trainer]

SMALL = RHNConfig(units=16, depth=2, embedding=8)
UNCOUPLED = replace(SMALL, coupled=False, gate_bias=0.0)
DROPOUT = {"drop_symbol": 0.05, "drop_input": 0.1, "drop_hidden": 0.1, "drop_output": 0.1}
ZILLY = {"optimizer": "sgd", "schedule": "zilly", "rate": 0.1, "decay_after": 1, "weight_decay": 1e-7}


def ignore(_report: Report) -> None:
    pass


def log_rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (SMALL, {}),
        (SMALL, {"dtype": torch.bfloat16}),
        (SMALL, {"drop_hidden": 0.1, "drop_output": 0.1}),
        (SMALL, {"drop_symbol": 0.1}),
        (SMALL, DROPOUT),
        (SMALL, ZILLY),
        (UNCOUPLED, {}),
        (UNCOUPLED, DROPOUT),
    ],
    ids=["plain", "bfloat16", "state", "symbols", "dropout", "zilly", "uncoupled", "uncoupled-dropout"],
)
def test_loss_falls(make_trainer: MakeTrainer, config: RHNConfig, settings: dict[str, Any]) -> None:
    trainer = make_trainer(config, **settings)
    losses = [trainer.train_segment()[0] for _ in range(30)]
    assert losses[0] == pytest.approx(8, abs=0.3)
    assert sum(losses[-3:]) / 3 < 5
    assert trainer.bytes_done == 30 * 4 * 16


@pytest.mark.parametrize("settings", [{}, DROPOUT], ids=["plain", "dropout"])
def test_loss_of_an_uncoupled_network_falls(make_trainer: MakeTrainer, settings: dict[str, Any]) -> None:
    """At first, and at a low rate: its state is not bounded, and may blow up later (Zilly et al. 2017, 5)."""
    trainer = make_trainer(UNCOUPLED, rate=1e-3, warmup=0.0, **settings)
    losses = [trainer.train_segment()[0] for _ in range(25)]
    assert losses[0] == pytest.approx(8, abs=0.3)
    assert losses[-1] < losses[0] - 0.03


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_resumed_run_takes_the_same_steps(make_trainer: MakeTrainer, tmp_path: Path, optimizer: str) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "reset": 0.3, **DROPOUT}
    straight = make_trainer(**settings)
    for _ in range(6):
        straight.train_segment()
    first = make_trainer(**settings)
    for _ in range(3):
        first.train_segment()
    first.save(tmp_path / "checkpoint.pt")
    second = make_trainer(**settings)
    second.load(tmp_path / "checkpoint.pt")
    for _ in range(3):
        second.train_segment()
    assert second.step == straight.step == 6
    for name, value in straight.parameters.items():
        assert torch.equal(value, second.parameters[name]), name
        assert not torch.equal(value, first.parameters[name]), name
    assert all(torch.equal(a, b) for a, b in zip(straight.state, second.state, strict=True))


@pytest.mark.parametrize("embedded", [False, True])
def test_fused_gradients_under_masks(embedded: bool) -> None:
    """The fused kernels give what autograd gives, where masks part the state from what the products read."""
    cell, generator = RHN(SMALL), torch.Generator().manual_seed(5)
    symbols, target = torch.randint(0, 256, (2, 7, 3), generator=generator)

    def mask(width: int) -> Tensor:
        return (torch.rand(3, width, generator=generator) < 0.6) / 0.6

    masks, input_masks = {"hidden": mask(16), "output": mask(16)}, (mask(256), mask(8))
    found = []
    for fused in (True, False):
        parameters = {
            name: (value + 0.1).requires_grad_()
            for name, value in cell.initial(torch.Generator().manual_seed(1)).items()
        }
        folded = cell.fold(parameters)
        ops = FloatOps(folded.linears, folded.tables, masks=masks, fused=fused)
        rows = cell.embed(parameters, symbols, *input_masks) if embedded else symbols
        loss, _ = segment_loss(cell, ops, rows, target, (torch.full((3, 16), 0.1, requires_grad=True),))
        loss.backward()
        ops.finish()
        found.append((loss.detach(), {name: value.grad for name, value in parameters.items()}))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert all(gradient.abs().max() > 0 for gradient in found[0][1].values())


@pytest.mark.parametrize("rate", ["drop_symbol", "drop_input", "drop_hidden", "drop_output"])
def test_each_dropout_acts_in_training_alone(make_trainer: MakeTrainer, rate: str) -> None:
    plain, dropped = make_trainer(), make_trainer(**{rate: 0.5})
    assert plain.validate() == dropped.validate()
    assert plain.train_segment()[0] != dropped.train_segment()[0]


def test_zilly_schedule_reaches_the_optimizer(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(**ZILLY, lanes=64, segment=90, decay=1.25, total_bytes=64 * 90 * 8)
    assert trainer.segments_per_epoch == 2  # 12,200 bytes in 64 lanes
    trainer.run(tmp_path, ignore, log_every=1)
    rates = [float(row["rate"]) for row in log_rows(tmp_path)]
    assert rates == pytest.approx([0.1, 0.1, 0.08, 0.08, 0.064, 0.064, 0.0512, 0.0512])


def test_run_logs_reports_and_saves(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer, reports, steps = make_trainer(), list[Report](), list[int]()
    folder = tmp_path / "new" / "run"
    trainer.run(folder, reports.append, log_every=640, valid_every=1280, progress=steps.append)
    rows = log_rows(folder)
    assert list(rows[0]) == ["bytes", "seconds", "rate", "train_bpc", "gradient_norm", "valid"]
    assert [int(row["bytes"]) for row in rows] == [640, 1280, 1920, 2560]
    assert [bool(row["valid"]) for row in rows] == [False, True, False, True]
    assert steps == list(range(64, 2561, 64))
    assert [report.bytes_done for report in reports] == [640, 1280, 1920, 2560]
    assert rows[3]["valid"] == f"end={reports[3].valid['end']:.4f}"
    assert float(rows[3]["train_bpc"]) == pytest.approx(reports[3].bpc, abs=1e-4)
    assert reports[3].bpc < reports[0].bpc - 1
    assert {path.name for path in folder.iterdir()} == {"log.csv", "checkpoint.pt"}
    content = read_checkpoint(folder / "checkpoint.pt")
    assert (content["step"], recipe_of(content)) == (40, trainer.recipe)
    trainer.run(folder, reports.append)  # a finished run has nothing left to do
    assert len(reports) == 4 and log_rows(folder) == rows


def test_stopped_run_is_saved_and_its_log_continued(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer, reports = make_trainer(), list[Report]()
    trainer.run(tmp_path, reports.append, log_every=640, stop=lambda: trainer.step == 15)
    assert [(report.bytes_done, report.valid) for report in reports] == [(640, {}), (960, {})]
    with open(tmp_path / "log.csv", "a") as file:  # of a run that was killed later than its last checkpoint
        file.write("1280,1,1,1,1,\n19")
    resumed = make_trainer()
    resumed.load(tmp_path / "checkpoint.pt")
    resumed.run(tmp_path, ignore, log_every=640)
    assert [int(row["bytes"]) for row in log_rows(tmp_path)] == [640, 960, 1280, 1920, 2560]
    seconds = [float(row["seconds"]) for row in log_rows(tmp_path)]
    assert seconds == sorted(seconds)


def test_new_run_begins_a_new_log(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("of a run that came to nothing\n1\n")
    make_trainer(total_bytes=64).run(tmp_path, ignore)
    assert [row["bytes"] for row in log_rows(tmp_path)] == ["64"]


def test_loss_that_is_not_a_number_ends_the_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(optimizer="sgd", rate=1e38, clip=1e30)
    with pytest.raises(TrainingError, match="the loss is not a number at byte .*lower rate"):
        trainer.run(tmp_path, ignore)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_data_that_does_not_fit(mix: Mix) -> None:
    with pytest.raises(TrainingError, match="12,200 bytes of training text .* 64 bytes in each of 200 lanes"):
        Trainer(RHN(SMALL), Recipe(lanes=200), mix)
    with pytest.raises(TrainingError, match="less than one segment"):
        Trainer(RHN(SMALL), Recipe(lanes=20_000), mix)
    with pytest.raises(TrainingError, match="byte 122 in the text is outside the vocabulary of 100"):
        Trainer(RHN(replace(SMALL, vocabulary=100)), Recipe(), mix)


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99"])
def test_no_such_device(mix: Mix, device: str) -> None:
    with pytest.raises(TrainingError, match=f"cannot compute on the device '{device}'"):
        Trainer(RHN(SMALL), Recipe(), mix, device)


def test_checkpoint_of_another_run(make_trainer: MakeTrainer, mix: Mix, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    trainer = make_trainer()
    trainer.save(path)
    with pytest.raises(TrainingError, match=r"another run: its recipe differs in rate \(0.03, not 0.5\)"):
        make_trainer(rate=0.5).load(path)
    with pytest.raises(TrainingError, match=r"another run: its config differs in depth \(2, not 3\)"):
        make_trainer(replace(SMALL, depth=3)).load(path)
    other_text = Trainer(trainer.cell, trainer.recipe, replace(mix, description=("dogs",)))
    with pytest.raises(TrainingError, match="another run: it was trained on .*foxes.*, not .*dogs"):
        other_text.load(path)


def test_unreadable_checkpoints(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(TrainingError, match="cannot read the checkpoint .*: No such file"):
        read_checkpoint(path)
    trainer = make_trainer()
    trainer.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrainingError, match="is not a checkpoint, or is damaged"):
        read_checkpoint(path)
    for content, message in (
        ([1, 2], "is not a checkpoint of rhnzip"),
        ({"parameters": {}}, "is not a checkpoint of rhnzip"),
        ({"format": 2}, "has checkpoint format 2, not 1"),
        ({"format": 1, "step": 3}, "it has no config, data, optimizer"),
    ):
        torch.save(content, path)
        with pytest.raises(TrainingError, match=message):
            read_checkpoint(path)
    path.write_bytes(whole)
    content = read_checkpoint(path)
    del content["parameters"]["output"]
    torch.save(content, path)
    with pytest.raises(TrainingError, match="is damaged: 'output'"):
        trainer.load(path)
    with pytest.raises(TrainingError, match="not one of this release: .*momentum"):
        recipe_of({"recipe": {"momentum": 0.9}})


def test_failed_save_leaves_the_old_checkpoint(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, path = make_trainer(), tmp_path / "checkpoint.pt"
    trainer.save(path)
    before = path.read_bytes()
    trainer.train_segment()

    def fill_the_disk(_content: object, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_the_disk)
    with pytest.raises(TrainingError, match="cannot write the checkpoint .*No space left"):
        trainer.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_directory_that_cannot_be_written(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot write the log"):
        make_trainer().run(tmp_path / "file", ignore)


def test_run_that_starts_from_another_remembers_it(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    first = make_trainer()
    for _ in range(3):
        first.train_segment()
    first.save(tmp_path / "first.pt")
    second = make_trainer(rate=1e-3, seed=5)
    second.start_from(tmp_path / "first.pt")
    for name, value in first.parameters.items():
        assert torch.equal(value, second.parameters[name])
    assert second.bytes_done == 0
    second.train_segment()
    second.save(tmp_path / "second.pt")
    (earlier,) = read_checkpoint(tmp_path / "second.pt")["history"]
    assert (earlier["recipe"]["rate"], earlier["step"]) == (3e-2, 3)
    with pytest.raises(TrainingError, match="other sizes"):
        make_trainer(RHNConfig(units=8, depth=2, embedding=8)).start_from(tmp_path / "first.pt")
