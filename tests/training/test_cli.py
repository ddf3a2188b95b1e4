from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rhnzip import __version__
from rhnzip.cli import cli
from rhnzip.models.modelfile import load_model_file
from rhnzip.training.loop import Trainer, read_checkpoint

TINY = ["--units", "16", "--depth", "2", "--embedding", "8", "--lanes", "4", "--segment", "16"]
QUICK = [*TINY, "--total-bytes", "1K", "--dtype", "float32", "--threads", "1"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def ok(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str | Path, status: int = 1) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    return result.stderr


@pytest.fixture
def checkpoint(text_file: Path, tmp_path: Path) -> Path:
    ok("train", text_file, "-o", tmp_path / "fox", *QUICK)
    return tmp_path / "fox" / "checkpoint.pt"


def test_train_then_use_the_model(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fox"
    done = ok("train", text_file, "-o", folder, *QUICK, "--log-every", "512", "--rate", "0.02")
    assert {path.name for path in folder.iterdir()} == {
        "checkpoint.pt",
        "log.csv",
        "fox.safetensors",
        "fox.md",
    }
    first, last = done.stderr.splitlines()
    line = r"{} of 1,024 bytes: train \d\.\d{{4}}{} bits per byte, \d+\.\d KiB/s, \d:\d\d:\d\d left"
    assert re.fullmatch(line.format("512", ""), first)
    assert re.fullmatch(line.format("1,024", r"  valid \d\.\d{4}"), last)
    model = load_model_file(folder / "fox.safetensors")
    assert f"fox, id {model.id.hex()}, " in done.stdout
    assert model.card["recipe"]["rate"] == 0.02 and model.card["rhnzip"] == __version__
    assert model.card["trained_on"] == ["fox.txt: 12,540 bytes x 1"]
    bpc = model.card["bpc"]["valid"]
    assert f"{bpc['float']:.4f}  {bpc['exact']:.4f}  valid\n" in done.stdout

    table = ok("eval", folder / "fox.safetensors", text_file, "--limit", "1K").stdout
    assert re.fullmatch(
        r" +bytes +dequantised +exact  file\n +1,024 +\d\.\d{4} +\d\.\d{4}  .*fox\.txt\n", table
    )
    record = json.loads(ok("eval", folder / "checkpoint.pt", text_file, "--limit", "1K", "--json").stdout)
    assert (record["ok"], record["bytes"], record["id"]) == (True, 1024, None)
    assert list(record["bpc"]) == ["float", "exact"]
    assert f"{record['bpc']['exact']:.4f}" in table
    assert abs(record["bpc"]["exact"] - record["bpc"]["float"]) < 0.05


def test_eval_goes_on_after_a_bad_file(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    model = checkpoint.parent / "fox.safetensors"
    done = run("eval", model, tmp_path / "absent", text_file, "--limit", "64", "--json")
    bad, good = (json.loads(line) for line in done.stdout.splitlines())
    assert done.exit_code == 1 and "absent: cannot read the text" in done.stderr
    assert (bad["ok"], good["ok"], good["model"]) == (False, True, "fox")
    assert good["id"] == load_model_file(model).id.hex()


def test_a_directory_holds_one_run(checkpoint: Path, text_file: Path) -> None:
    folder = checkpoint.parent
    before = checkpoint.read_bytes()
    assert "fox holds a run; continue it with --resume" in refused("train", text_file, "-o", folder, *QUICK)
    assert "its recipe differs in rate (0.002, not 0.5)" in refused(
        "train", text_file, "-o", folder, "--resume", "--rate", "0.5"
    )
    assert "its config differs in coupled (True, not False)" in refused(
        "train", text_file, "-o", folder, "--resume", "--uncoupled"
    )
    assert "cannot read the checkpoint" in refused("train", text_file, "-o", folder / "no", "--resume")
    assert checkpoint.read_bytes() == before
    # A finished run is exported anew; its settings need not be repeated.
    done = ok("train", text_file, "-o", folder, "--resume", "--name", "second")
    assert done.stderr == "" and (folder / "second.safetensors").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_saved(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    take_step = Trainer.train_segment

    def interrupted(self: Trainer) -> tuple[float, float]:
        if self.step == 4:
            signal.raise_signal(number)
        return take_step(self)

    folder = tmp_path / "my run"
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_segment", interrupted)
        stopped = run("train", text_file, "-o", folder, "--name", "fox", *QUICK)
    assert stopped.exit_code == 128 + number
    assert f"to continue: rhnzip train {text_file} -o '{folder}' --resume --name fox\n" in stopped.stderr
    assert read_checkpoint(folder / "checkpoint.pt")["step"] == 5
    assert not (folder / "fox.safetensors").exists()
    assert signal.getsignal(number) is handler
    ok("train", text_file, "-o", folder, "--resume", "--name", "fox", "--dtype", "float32")
    assert read_checkpoint(folder / "checkpoint.pt")["step"] == 16
    assert (folder / "fox.safetensors").exists()


def test_second_interrupt_ends_at_once(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: Trainer) -> tuple[float, float]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second interrupt was not heard")

    monkeypatch.setattr(Trainer, "train_segment", interrupted)
    assert refused("train", text_file, "-o", tmp_path / "fox", *QUICK, status=130) == "rhnzip: interrupted\n"
    assert not (tmp_path / "fox" / "checkpoint.pt").exists()


def test_options_override_a_preset(text_file: Path, tmp_path: Path) -> None:
    ok("train", text_file, "-o", tmp_path / "fox", "--preset", "zilly-enwik8", *QUICK, "--drop-input", "0.3")
    content = read_checkpoint(tmp_path / "fox" / "checkpoint.pt")
    assert content["config"] == {
        "cell": "rhn",
        "units": 16,
        "depth": 2,
        "embedding": 8,
        "vocabulary": 256,
        "coupled": True,
        "gate_bias": -4.0,
        "init_range": 0.04,
        "head_layers": 0,
    }
    expected = {"optimizer": "sgd", "rate": 0.2, "lanes": 4, "segment": 16, "drop_input": 0.3}
    expected |= {"drop_output": 0.4, "reset": 0.0, "total_bytes": 1024}
    assert {name: content["recipe"][name] for name in expected} == expected


def test_network_options(text_file: Path, tmp_path: Path) -> None:
    options = ["--uncoupled", "--gate-bias", "-1", "--init-range", "0.1", "--dtype", "float32", "--seed", "7"]
    ok("train", text_file, "-o", tmp_path / "fox", *TINY, "--total-bytes", "64", *options)
    content = read_checkpoint(tmp_path / "fox" / "checkpoint.pt")
    config = content["config"]
    assert (config["coupled"], config["gate_bias"], config["init_range"]) == (False, -1.0, 0.1)
    assert content["recipe"]["seed"] == 7
    ok("train", text_file, "-o", tmp_path / "dog", *QUICK, "--uncoupled")
    assert read_checkpoint(tmp_path / "dog" / "checkpoint.pt")["config"]["gate_bias"] == 0


SMALL_NETWORKS = {
    "lstm": {"units": 12, "layers": 2, "sequential": "true"},
    "fsrnn": {"fast_units": 10, "slow_units": 8, "keep_hidden": 0.9, "slow": "rhn"},
    "hsg": {"units": 12, "depth": 2},
    "hyper_rhn": {"units": 12, "depth": 2, "hyper_units": 8},
}


@pytest.mark.parametrize("cell", SMALL_NETWORKS)
def test_every_cell_trains_and_codes(cell: str, text_file: Path, tmp_path: Path) -> None:
    given = [part for pair in SMALL_NETWORKS[cell].items() for part in ("--set", "{}={}".format(*pair))]
    dropouts = ["--drop-hidden", "0.1", "--drop-input", "0.1", "--drop-output", "0.1", "--drop-gate", "0.1"]
    quick = ["--total-bytes", "1024", "--lanes", "4", "--segment", "16"]
    ok("train", text_file, "-o", tmp_path / cell, "--cell", cell, *given, *quick, *dropouts)
    model = tmp_path / cell / f"{cell}.safetensors"
    packed, back = tmp_path / "packed", tmp_path / "back"
    for preset in ("fast", "default"):
        ok("compress", "-f", "--preset", preset, "-m", model, text_file, "-o", packed)
        ok("decompress", "-f", "-m", model, packed, "-o", back)
        assert back.read_bytes() == text_file.read_bytes()


def test_export(checkpoint: Path, text_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "two.safetensors"
    texts: list[Any] = ["--mix", text_file, "--valid", text_file]
    done = ok("export", checkpoint, "-o", target, *texts, "--description", "about foxes")
    model = load_model_file(target)
    assert (model.name, model.card["description"]) == ("two", "about foxes")
    assert set(model.card["bpc"]) == {"valid", "fox.txt"}
    assert model.id.hex() in done.stdout and "  fox.txt\n" in done.stdout
    assert model.id == load_model_file(checkpoint.parent / "fox.safetensors").id
    assert target.with_suffix(".md").read_text().startswith("# two\n")

    assert "two.safetensors already exists; -f" in refused("export", checkpoint, "-o", target)
    assert "No held-out text" not in target.with_suffix(".md").read_text()
    bare = ok("export", checkpoint, "-o", target, "-f", "--name", "three")
    assert load_model_file(target).name == "three" and "bits per byte" not in bare.stdout
    assert "No held-out text was measured" in target.with_suffix(".md").read_text()
    assert "two held-out texts are called fox.txt" in refused(
        "export", checkpoint, "-o", tmp_path / "x.safetensors", "--valid", text_file, "--valid", text_file
    )
    assert "must end in .safetensors" in refused("export", checkpoint, "-o", tmp_path / "x.bin")
    assert "is not a checkpoint" in refused("export", text_file, "-o", tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lanes", "0"], "lanes must be a whole number of at least 1, not 0"),
        (["--drop-hidden", "1"], "drop-hidden must be at least 0 and below 1, not 1.0"),
        (["--units", "0"], "'units' is 0, not in 1..65536"),
        (["--cell", "gru"], "unknown cell 'gru'"),
        (["--set", "units=many"], "'units' is 'many', not of type int"),
        (["--set", "colour=2"], "unknown setting 'colour'"),
        (["--cell", "fsrnn", "--set", "fast_units=4"], "fsrnn"),
        (["--total-bytes", "64", "--lanes", "5000"], "fewer lanes"),
        (["--device", "abacus"], "cannot compute on the device 'abacus'"),
        (["--name", "a b"], "'a b' cannot name a model"),
        (["--rate", "1e38", "--optimizer", "sgd", "--clip", "1e30"], "the loss is not a number"),
    ],
)
def test_bad_options(text_file: Path, tmp_path: Path, options: list[str], message: str) -> None:
    error = refused("train", text_file, "-o", tmp_path / "fox", *QUICK, *options)
    assert error.startswith("rhnzip: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried 3 TiB\nmore")])
def test_memory_that_does_not_suffice(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_self: Trainer) -> tuple[float, float]:
        raise error

    monkeypatch.setattr(Trainer, "train_segment", fail)
    told = refused("train", text_file, "-o", tmp_path / "fox", *QUICK)
    assert told.startswith("rhnzip: not enough memory; train fewer units") and told.count("\n") == 1


def test_bad_usage(text_file: Path, tmp_path: Path) -> None:
    assert "Missing option '-o'" in refused("train", text_file, status=2)
    assert "not a size" in refused("train", text_file, "-o", tmp_path, "--total-bytes", "much", status=2)
    assert "cannot read the text" in refused("train", tmp_path / "absent", "-o", tmp_path / "fox")
    assert "no model 'absent'" in refused("eval", "absent", text_file)
