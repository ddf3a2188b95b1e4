"""The `rhnzip` command, over the real archive format and a toy in the place of the network.

Run as a script, this file is the `rhnzip` command with that toy: see `run`.
"""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import resource
import signal
import stat
import subprocess
import sys
import termios
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rhnzip
from rhnzip.archive import PRESET_NAMES
from rhnzip.cli import cli, main
from rhnzip.errors import BackendError, CorruptError, UnknownModelError

TEXT = b"the quick brown fox jumps over the lazy dog. " * 200


class ToyCodec:
    """zlib; to encode a block takes it TOY_SECONDS, from the environment, and first it says that it runs."""

    def reset(self) -> None:
        pass

    def encode(
        self, raw: bytes, lanes: int, segment: int, progress: Callable[[int, int], None] | None
    ) -> bytes:
        if "TOY_SECONDS" in os.environ:
            print("running", flush=True)
            time.sleep(float(os.environ["TOY_SECONDS"]))
        if progress:
            progress(len(raw), len(raw) // 2)
        return zlib.compress(raw)

    def decode(
        self,
        payload: bytes,
        length: int,
        lanes: int,
        segment: int,
        progress: Callable[[int, int], None] | None,
    ) -> bytes:
        if progress:
            progress(length, length // 2)
        try:
            return zlib.decompress(payload)
        except zlib.error as error:
            raise CorruptError(str(error)) from error


def toy_coding() -> ModuleType:
    """Return what stands for `rhnzip.coding`."""

    def open_codec(
        model: object, *, backend: str | None, device: str, threads: int | None, **_: object
    ) -> ToyCodec:
        if backend == "absent":
            raise BackendError("there is no backend 'absent'")
        logging.getLogger("rhnzip.coding").info("backend %s, device %s, threads %s", backend, device, threads)
        return ToyCodec()

    def load_model(name: str | None) -> object:
        if name not in (None, "toy"):
            raise UnknownModelError(f"no model {name!r}")
        return SimpleNamespace(id=bytes(8), name="toy")

    module: Any = ModuleType("rhnzip.coding")
    mode = SimpleNamespace(shape=lambda length: SimpleNamespace(lanes=1, segment=0), parameters={})
    fast = SimpleNamespace(number=0, learning=False, block_size=1 << 20, mode=lambda _model_name: mode)
    module.PRESETS = {
        name: SimpleNamespace(**vars(fast) | {"number": number}) for number, name in PRESET_NAMES.items()
    }
    module.PARAMETER_IDS = {}
    module.looks_random = lambda raw: False
    module.ARITHMETIC_VERSION = 0
    module.load = load_model
    module.find_model = lambda identifier, name, extra: load_model(name)
    module.open_codec = open_codec
    return module  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = toy_coding()
    monkeypatch.setitem(sys.modules, "rhnzip.coding", module)
    monkeypatch.setattr(rhnzip, "coding", module, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    return path


def invoke(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


def ok(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def fails(*arguments: str | Path, says: str, status: int = 1) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == status, result.output
    assert re.search(says, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    return result


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, __file__, *map(str, arguments)]


def environment(**extra: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(rhnzip.__file__).parent.parent)} | extra


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command, with the toy, in a process of its own."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60, "env": environment()}
    return subprocess.run(command(*arguments), check=False, **(defaults | options))


def names() -> set[str]:
    return set(os.listdir())


# --- Compress and decompress ---


def test_round_trip_keeps_the_source(text: Path) -> None:
    ok("compress", text)
    assert names() == {"a.txt", "a.txt.rhn"}
    text.rename("original")
    ok("decompress", "a.txt.rhn")
    assert text.read_bytes() == TEXT
    assert names() == {"a.txt", "a.txt.rhn", "original"}


def test_empty_file(tmp_path: Path) -> None:
    Path("empty").touch()
    result = ok("compress", "empty")
    assert re.fullmatch(r"empty: 0 → \d+ bytes \(\d+\.\d s\)\n", result.stderr)
    ok("decompress", "empty.rhn", "-o", "back")
    assert Path("back").read_bytes() == b""


def test_final_line(text: Path) -> None:
    packed = r"\d+ bytes \(\d+\.\d %, \d\.\d\d bits per byte, \d+\.\d s\)\n"
    assert re.fullmatch(rf"a\.txt: 9,000 → {packed}", ok("compress", "a.txt").stderr)
    unpacked = packed.replace("bytes", "→ 9,000 bytes", 1)
    assert re.fullmatch(rf"a\.txt\.rhn: {unpacked}", ok("decompress", "a.txt.rhn", "-f").stderr)
    assert re.fullmatch(rf"a\.txt\.rhn: ok, {unpacked}", ok("test", "a.txt.rhn").stderr)


def test_quiet_says_nothing_but_errors(text: Path) -> None:
    assert ok("compress", "-q", text).output == ""
    assert fails("compress", "-q", "missing", says="missing: No such file").stdout == ""


def test_output_option(text: Path) -> None:
    ok("compress", text, "-o", "x")
    ok("decompress", "x", "-o", "y")
    assert Path("y").read_bytes() == TEXT
    assert names() == {"a.txt", "x", "y"}


@pytest.mark.parametrize("option", [["-c"], ["-o", "-"]])
def test_standard_output(text: Path, option: list[str]) -> None:
    packed = ok("compress", "a.txt", *option).stdout_bytes
    assert names() == {"a.txt"}
    Path("b.rhn").write_bytes(packed)
    assert ok("decompress", "b.rhn", *option).stdout_bytes == TEXT
    assert names() == {"a.txt", "b.rhn"}


def test_standard_input_to_standard_output() -> None:
    packed = ok("compress", "-", stdin=TEXT)
    assert packed.stderr.startswith("standard input: 9,000 →")
    assert ok("decompress", "-", stdin=packed.stdout_bytes).stdout_bytes == TEXT
    assert names() == set()


def test_pipe_and_file_give_equal_archives(text: Path) -> None:
    piped = run("compress", "-", input=TEXT).stdout
    ok("compress", text)
    assert Path("a.txt.rhn").read_bytes() == piped
    assert run("decompress", "-", "-o", "b", input=piped).returncode == 0
    assert Path("b").read_bytes() == TEXT


def test_several_files_joined_decompress_as_one(text: Path) -> None:
    Path("b.txt").write_bytes(b"more")
    Path("both.rhn").write_bytes(ok("compress", "-c", "a.txt", "b.txt").stdout_bytes)
    ok("decompress", "both.rhn")
    assert Path("both").read_bytes() == TEXT + b"more"


def test_mode_and_time_travel(text: Path) -> None:
    text.chmod(0o640)
    os.utime(text, (1_000_000_000, 1_000_000_000))
    ok("compress", text)
    ok("decompress", "a.txt.rhn", "-o", "back")
    for path in (Path("a.txt.rhn"), Path("back")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert path.stat().st_mtime == 1_000_000_000


def test_rm(text: Path) -> None:
    ok("compress", "--rm", text)
    assert names() == {"a.txt.rhn"}
    ok("decompress", "--rm", "a.txt.rhn")
    assert names() == {"a.txt"}


def test_block_size(text: Path) -> None:
    ok("compress", text, "--block-size", "1K")
    (frame,) = json.loads(ok("info", "--json", "a.txt.rhn").stdout)["frames"]
    assert [block["raw_bytes"] for block in frame["blocks"]] == [1024] * 8 + [808]


@pytest.mark.parametrize(("size", "blocks"), [("4000", 3), ("2k", 5), ("4KiB", 3), ("1M", 1), ("8KB", 2)])
def test_block_size_spellings(text: Path, size: str, blocks: int) -> None:
    ok("compress", text, "--block-size", size)
    (frame,) = json.loads(ok("info", "--json", "a.txt.rhn").stdout)["frames"]
    assert len(frame["blocks"]) == blocks


@pytest.mark.parametrize(
    ("options", "preset"),
    [
        ([], "default"),
        (["--fast"], "fast"),
        (["--best"], "best"),
        (["--preset", "default"], "default"),
        (["--preset", "fast"], "fast"),
        (["--preset", "best", "--fast"], "fast"),
    ],
)
def test_preset(text: Path, options: list[str], preset: str) -> None:
    ok("compress", text, *options)
    (frame,) = json.loads(ok("info", "--json", "a.txt.rhn").stdout)["frames"]
    assert frame["preset"] == preset


def test_help_names_the_presets() -> None:
    shown = ok("compress", "--help").stdout
    assert all(f"\n  {name} " in shown for name in PRESET_NAMES.values())


# --- What is refused ---


def test_overwriting_needs_force(text: Path) -> None:
    Path("a.txt.rhn").write_bytes(b"old")
    fails("compress", text, says=r"a\.txt\.rhn already exists")
    assert Path("a.txt.rhn").read_bytes() == b"old"
    ok("compress", "-f", text)
    fails("decompress", "a.txt.rhn", says=r"a\.txt already exists")
    ok("decompress", "-f", "a.txt.rhn")


def test_input_is_not_overwritten_even_with_force(text: Path) -> None:
    fails("compress", text, "-f", "-o", text, says="own output")
    assert text.read_bytes() == TEXT


def test_unknown_suffix(text: Path) -> None:
    for name in ("a.txt", ".rhn"):
        Path(name).write_bytes(ok("compress", "-c", "a.txt").stdout_bytes)
        fails("decompress", name, says=r"no \.rhn at the end")
        ok("decompress", name, "-f", "-o", "b")
        assert ok("decompress", name, "-c").stdout_bytes == Path("b").read_bytes()


def test_directory_device_and_missing_file(tmp_path: Path) -> None:
    fails("compress", tmp_path, says="is a directory")
    fails("compress", os.devnull, says="not a regular file")
    fails("compress", "missing", says="^rhnzip: missing: No such file or directory\n$")
    for name in ("decompress", "test", "info"):
        fails(name, "missing.rhn", says=r"^rhnzip: missing\.rhn: No such file or directory\n$")


def test_other_files_are_processed_after_a_failure(text: Path) -> None:
    fails("compress", "missing", "a.txt", says="missing: No such file")
    assert names() == {"a.txt", "a.txt.rhn"}


def test_rm_keeps_a_source_whose_output_failed(text: Path) -> None:
    fails("compress", "--rm", text, "-o", "no/where", says=r"a\.txt: no/where: No such file")
    fails("compress", "--rm", text, "-o", os.devnull, says="without --rm")
    assert names() == {"a.txt"}


@pytest.mark.parametrize("kept", [0, 1, 20, 60, -1])
def test_truncated_archive_leaves_no_output(text: Path, kept: int) -> None:
    packed = ok("compress", "-c", text).stdout_bytes
    Path("cut.rhn").write_bytes(packed[:kept])
    for name in ("decompress", "test", "info"):
        fails(name, "cut.rhn", says=r"^rhnzip: cut\.rhn: .+\n$")
    assert names() == {"a.txt", "cut.rhn"}


def test_damaged_archive_leaves_no_output(text: Path) -> None:
    packed = bytearray(ok("compress", "-c", text).stdout_bytes)
    packed[len(packed) // 2] ^= 1
    Path("bad.rhn").write_bytes(packed)
    fails("decompress", "bad.rhn", says=r"^rhnzip: bad\.rhn: .+\n$")
    assert names() == {"a.txt", "bad.rhn"}


def test_library_errors_are_one_line(text: Path) -> None:
    fails("compress", text, "-m", "nobody", says="^rhnzip: .*a.txt: no model 'nobody'\n$")
    fails("compress", text, "--backend", "absent", says="^rhnzip: .*a.txt: there is no backend 'absent'\n$")
    fails("compress", text, "--block-size", "1G", says="^rhnzip: .*a.txt: a block size of .*\n$")
    assert names() == {"a.txt"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Usage"),
        (["compress"], "FILE"),
        (["explode"], "No such command"),
        (["compress", "--block-size", "many", "a.txt"], "not a size"),
        (["compress", "--block-size", "0", "a.txt"], "not a size"),
        (["compress", "--preset", "slow", "a.txt"], "'slow' is none of: fast, default, best"),
        (["compress", "--threads", "0", "a.txt"], "threads"),
        (["compress", "-c", "-o", "b", "a.txt"], "exclude"),
        (["compress", "-o", "b", "a.txt", "a.txt"], "one FILE"),
        (["compress", "-c", "--rm", "a.txt"], "--rm"),
        (["compress", "-", "--rm", "-o", "b"], "--rm"),
        (["compress", "-c", "--json", "a.txt"], "--json"),
        (["decompress", "-", "--json"], "--json"),
    ],
)
def test_wrong_usage(text: Path, arguments: list[str], says: str) -> None:
    fails(*arguments, says=says, status=2)
    assert names() == {"a.txt"}


# --- What goes wrong while writing ---


def test_disk_full(text: Path) -> None:
    with open("/dev/full", "wb") as full:
        for done in (run("compress", text, "-o", "/dev/full"), run("compress", "-c", text, stdout=full)):
            assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
            assert b"a.txt: No space left on device" in done.stderr
    assert names() == {"a.txt"}


def test_failed_write_leaves_no_output(text: Path) -> None:
    text.write_bytes(os.urandom(1 << 20))
    done = run("compress", text, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert (done.returncode, done.stderr) == (1, f"rhnzip: {text}: File too large\n".encode())
    assert names() == {"a.txt"}


def test_output_below_a_file(text: Path) -> None:
    fails("compress", text, "-o", "a.txt/b", says=r"a\.txt/b: Not a directory")
    fails("compress", text, "-o", "/proc/b", says="/proc/b: ")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupt_leaves_no_partial_file(text: Path, number: int, status: int) -> None:
    Path("a.txt.rhn").write_bytes(b"old")
    with subprocess.Popen(
        command("compress", "-f", "--rm", text, "-o", "a.txt.rhn"),
        env=environment(TOY_SECONDS="60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # pytest may itself run with these ignored, as under nohup
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"running\n"
        assert len(names()) == 3
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert b"Traceback" not in errors
    assert names() == {"a.txt", "a.txt.rhn"}
    assert Path("a.txt.rhn").read_bytes() == b"old"


def test_broken_pipe_is_quiet(text: Path) -> None:
    text.write_bytes(os.urandom(1 << 20))
    with subprocess.Popen(
        command("compress", "-c", text), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("closed", [0, 1])
def test_closed_standard_stream(closed: int) -> None:
    done = run("compress", "-", stdin=subprocess.DEVNULL, preexec_fn=lambda: os.close(closed))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"is closed" in done.stderr


# --- Terminals ---


@pytest.fixture
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield a terminal to write to, and a function that returns what was written."""
    controller, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 120))

    def written() -> str:
        os.write(end, b"\0")  # what to read to
        got = b""
        while not got.endswith(b"\0"):
            got += os.read(controller, 4096)
        return got.decode(errors="replace")

    yield end, written
    os.close(end)
    os.close(controller)


def test_archive_is_not_written_to_a_terminal(text: Path, terminal: tuple[int, Callable[[], str]]) -> None:
    done = run("compress", "-c", text, stdout=terminal[0])
    assert done.returncode == 1
    assert b"terminal" in done.stderr
    assert run("compress", "-c", "-f", text, stdout=terminal[0]).returncode == 0


def test_text_is_written_to_a_terminal(text: Path, terminal: tuple[int, Callable[[], str]]) -> None:
    ok("compress", text)
    assert run("decompress", "-c", "a.txt.rhn", stdout=terminal[0]).returncode == 0
    assert "quick brown fox" in terminal[1]()


def test_progress_on_a_terminal(text: Path, terminal: tuple[int, Callable[[], str]]) -> None:
    slow = environment(TOY_SECONDS="0.2")
    assert run("compress", text, "--block-size", "5K", stderr=terminal[0], env=slow).returncode == 0
    shown = terminal[1]()
    assert re.search(r"\ra\.txt: +100%\|.*\| 9\.00k/9\.00k \[.*B/s, \d\.\d{3} bits per byte\]", shown), shown
    assert run("decompress", "-f", "a.txt.rhn", stderr=terminal[0]).returncode == 0
    assert f"0.00/{Path('a.txt.rhn').stat().st_size}" in terminal[1]()
    assert run("test", "-q", "a.txt.rhn", stderr=terminal[0]).returncode == 0
    assert terminal[1]() == "\0"


# --- Reports ---


def test_json(text: Path) -> None:
    packed = ok("compress", "--json", "a.txt")
    record = json.loads(packed.stdout)
    size = Path("a.txt.rhn").stat().st_size
    assert record.pop("seconds") >= 0
    assert record == {
        "file": "a.txt",
        "ok": True,
        "output": "a.txt.rhn",
        "raw_bytes": len(TEXT),
        "packed_bytes": size,
        "frames": 1,
        "blocks": 1,
    }
    assert packed.stderr == ""
    assert json.loads(ok("test", "--json", "a.txt.rhn").stdout)["output"] is None


def test_json_has_a_line_for_each_file(text: Path) -> None:
    lines = fails("compress", "--json", "missing", "a.txt", says="missing").stdout.splitlines()
    assert [json.loads(line)["ok"] for line in lines] == [False, True]
    assert json.loads(lines[0])["error"] == "No such file or directory"


def test_info(text: Path) -> None:
    ok("compress", text, "--block-size", "4K")
    size = Path("a.txt.rhn").stat().st_size
    plain, detailed = ok("info", "a.txt.rhn").stdout, ok("info", "-v", "a.txt.rhn").stdout
    assert plain.startswith(f"a.txt.rhn: 9,000 → {size} bytes")
    assert "model 'toy' (0000000000000000), preset default, format 1, arithmetic 0" in plain
    assert detailed.startswith(plain)
    assert detailed.count("coded block at") == 3


def test_verbose_shows_what_computes(text: Path) -> None:
    done = run("compress", "-v", text, "--backend", "slow", "--device", "here", "--threads", "3")
    assert b"rhnzip: backend slow, device here, threads 3\n" in done.stderr
    assert b"backend" not in run("compress", "-f", text).stderr


def test_models(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Card:
        name: str = "toy"
        id_hex: str = "0" * 16
        parameters: int = 1234
        description: str = "plays"

    registry: Any = ModuleType("rhnzip.models.library")
    registry.available = lambda: [Card()]
    monkeypatch.setitem(sys.modules, "rhnzip.models.library", registry)
    assert ok("models").stdout == "toy  0000000000000000  1,234 parameters  plays\n"
    assert json.loads(ok("models", "--json").stdout)["parameters"] == 1234


def test_version() -> None:
    assert re.fullmatch(r"rhnzip \d+\.\d+\.\d+ \(format \d+, arithmetic \d+\)\n", ok("--version").stdout)


def test_help_tells_the_exit_status() -> None:
    assert "Exit status: 0" in ok("--help").stdout


if __name__ == "__main__":
    sys.modules["rhnzip.coding"] = toy_coding()
    main()
