"""The `rhnzip` command: parse, call the library, print.

Whatever computes is imported inside the commands, so that `rhnzip --help` answers at once.
"""

from __future__ import annotations

import functools
import gc
import io
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO

import click

from rhnzip import __version__
from rhnzip.archive import PRESET_NAMES
from rhnzip.errors import RhnzipError
from rhnzip.files import is_replaceable, open_input, open_output

if TYPE_CHECKING:
    from rhnzip.streams import FrameInfo, Summary

SUFFIX = ".rhn"
STDIO = "-"

Command = Callable[..., None]
Progress = Callable[[int, int], None]


def _gather(kind: type[Any], *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Add options to a command, which gets their values as one `kind`, a dataclass with a field for each."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(**values: Any) -> None:
            own = {field.name: values.pop(field.name) for field in fields(kind)}
            command(**{kind.__name__.lower(): kind(**own)}, **values)

        decorated: Command = gathered
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


@dataclass(frozen=True)
class Outputs:
    """Where outputs go, and what becomes of what is there and of the inputs."""

    output: str | None
    stdout: bool
    force: bool
    remove: bool

    def check(self, files: tuple[str, ...], report: Report) -> None:
        """Refuse options that contradict each other.

        Raises:
            click.UsageError: says which.
        """
        if self.stdout and self.output is not None:
            raise click.UsageError("-c and -o exclude each other")
        if self.output not in (None, STDIO) and len(files) > 1:
            raise click.UsageError("-o takes one FILE; without it each output stands beside its FILE")
        to_stdout = self.stdout or self.output == STDIO or (self.output is None and STDIO in files)
        if self.remove and (to_stdout or STDIO in files):
            raise click.UsageError("--rm needs files to read and to write")
        if report.as_json and to_stdout:
            raise click.UsageError("--json needs the standard output for itself; write to a file with -o")

    def path(self, file: str, rename: Callable[[str], str]) -> str:
        """Return where the output of `file` goes; `rename` derives it from the file's own name."""
        if self.output is not None:
            return self.output
        return STDIO if self.stdout or file == STDIO else rename(file)

    def open(
        self, path: str, like: os.stat_result | None, *, packing: bool
    ) -> AbstractContextManager[BinaryIO]:
        """Open the output; `like` is the status of the input if that is a file.

        Raises:
            RhnzipError: `path` is taken, or is a terminal and the output binary (`packing`).
            OSError: it cannot be opened.
        """
        if path != STDIO:
            if self.remove and not is_replaceable(path):
                raise RhnzipError(f"{path} is not a regular file and keeps nothing; do without --rm")
            return open_output(path, like=like, force=self.force)
        sink = _standard(sys.stdout, "output")
        if packing and not self.force and sink.isatty():
            raise RhnzipError("no archive is written to a terminal; redirect it, use -o, or insist with -f")
        return _flushed(sink)


output_options = _gather(
    Outputs,
    click.option("-o", "--output", metavar="PATH", help="Write to this file; - is the standard output."),
    click.option("-c", "--stdout", is_flag=True, help="Write to the standard output."),
    click.option("-f", "--force", is_flag=True, help="Overwrite files; write archives to a terminal."),
    click.option("--rm", "remove", is_flag=True, help="Remove each FILE once its output is complete."),
)


@dataclass(frozen=True)
class Engine:
    """What computes, and with which model."""

    model: str | None
    device: str
    backend: str | None
    threads: int | None


engine_options = _gather(
    Engine,
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A built-in model's name, a model file, or scratch, a network that learns all from FILE; "
        "A+B averages two.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Where to compute, such as cpu or cuda."),
    click.option("--backend", metavar="NAME", help="What computes there; the bytes are the same with each."),
    click.option("--threads", metavar="N", type=click.IntRange(min=1), help="How many threads compute."),
)


@dataclass(frozen=True)
class Report:
    """What a command tells about its work, and where."""

    quiet: bool
    verbose: bool
    as_json: bool

    def done(self, file: str, summary: Summary, seconds: float, *, output: str | None, packing: bool) -> None:
        """Tell that `file` was compressed (`packing`), decompressed to `output`, or tested (no `output`)."""
        raw, packed = summary.raw_bytes, summary.packed_bytes
        if self.as_json:
            self._record(file=file, ok=True, output=output, **asdict(summary), seconds=round(seconds, 6))
        elif not self.quiet:
            sizes = f"{raw:,} → {packed:,}" if packing else f"{packed:,} → {raw:,}"
            tested = "ok, " if output is None else ""
            figures = ", ".join([*_ratio(raw, packed), f"{seconds:.1f} s"])
            click.echo(f"{_label(file)}: {tested}{sizes} bytes ({figures})", err=True)

    def frames(self, file: str, frames: list[FrameInfo]) -> None:
        """Describe the archive `file`."""
        if self.as_json:
            self._record(file=file, ok=True, frames=[asdict(frame) for frame in frames])
        elif not self.quiet:
            raw = sum(frame.raw_bytes for frame in frames)
            packed = sum(frame.packed_bytes for frame in frames)
            figures = ", ".join([f"{raw:,} → {packed:,} bytes", *_ratio(raw, packed)])
            click.echo(f"{_label(file)}: {figures}, frames: {len(frames)}")
            for frame in frames:
                click.echo(
                    f"  frame at {frame.offset:,}: {frame.raw_bytes:,} → {frame.packed_bytes:,} bytes, "
                    f"blocks: {len(frame.blocks)}, model {frame.model_name!r} ({frame.model_id}), preset "
                    f"{frame.preset}, format {frame.format_version}, arithmetic {frame.arithmetic_version}"
                )
                for block in frame.blocks if self.verbose else ():
                    click.echo(
                        f"    {block.kind} block at {block.offset:,}: "
                        f"{block.raw_bytes:,} → {block.packed_bytes:,} bytes, lanes: {block.lanes}"
                    )

    def failed(self, file: str, message: str) -> None:
        """Tell why `file` failed."""
        click.echo(f"rhnzip: {_label(file)}: {message}", err=True)
        if self.as_json:
            self._record(file=file, ok=False, error=message)

    @contextmanager
    def progress(
        self, file: str, status: os.stat_result | None, *, packing: bool
    ) -> Iterator[Progress | None]:
        """Show a bar while the block runs, if a person looks at the standard error.

        Args:
            file: what is worked on.
            status: its status, if it is a file.
            packing: whether it holds raw bytes; else packed ones.
        """
        if self.quiet or sys.stderr is None or not sys.stderr.isatty():
            yield None
            return
        from tqdm import tqdm

        with tqdm(
            desc=os.path.basename(_label(file)),
            total=None if status is None else status.st_size,
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
            leave=False,
        ) as bar:
            before: int | None = None

            def update(raw: int, packed: int) -> None:
                nonlocal before
                if raw and before not in (None, packed):  # packed bytes that stand still are not yet counted
                    bar.set_postfix_str(f"{8 * packed / raw:.3f} bits per byte", refresh=False)
                before = packed
                bar.update((raw if packing else packed) - bar.n)

            yield update

    @staticmethod
    def _record(**values: Any) -> None:
        click.echo(json.dumps(values))


report_options = _gather(
    Report,
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
    click.option("-v", "--verbose", is_flag=True, help="Print details."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object per FILE; bytes and seconds."
    ),
)

files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True)


TRAINING_COMMANDS = ("corpus", "eval", "export", "inspect", "train")


class Commands(click.Group):
    """The group of commands; an interrupt ends it with status 130, an error that is no FILE's with 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, those of training among them."""
        return sorted([*super().list_commands(ctx), *TRAINING_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; those of training are imported when asked for."""
        if cmd_name in TRAINING_COMMANDS:
            from rhnzip.training import cli as training

            return next(
                command
                for command in (
                    training.corpus,
                    training.evaluate,
                    training.export,
                    training.inspect,
                    training.train,
                )
                if command.name == cmd_name
            )
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except RhnzipError as error:
            click.echo(f"rhnzip: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("rhnzip: interrupted", err=True)
            ctx.exit(130)


def parse_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return how many bytes `text`, such as `64K`, stands for."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,17})([KMG]?)(i?B)?", text, re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a size such as 65536, 64K or 4M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def _check_preset(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """Return `name` if this release has such a preset."""
    if name not in PRESET_NAMES.values():
        raise click.BadParameter(f"{name!r} is none of: {', '.join(PRESET_NAMES.values())}")
    return name


def _print_version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from rhnzip.archive import FORMAT_VERSION
        from rhnzip.exact.constants import ARITHMETIC_VERSION

        click.echo(f"rhnzip {__version__} (format {FORMAT_VERSION}, arithmetic {ARITHMETIC_VERSION})")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 all is well; 1 a FILE failed (the others are still worked on); 2 wrong usage; "
    "130 interrupted. An output that is not complete is removed.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of rhnzip, its format and its arithmetic.",
)
def cli() -> None:
    """Compress text with a recurrent highway network.

    A FILE is kept unless --rm is given; - stands for the standard input. Archives may be joined end to end.
    """


@cli.command()
@files_argument
@click.option(
    "--preset", metavar="NAME", default="default", callback=_check_preset, help="One of those above."
)
@click.option("--fast", "preset", flag_value="fast", help="The same as --preset fast.")
@click.option("--best", "preset", flag_value="best", help="The same as --preset best.")
@click.option(
    "--block-size", metavar="SIZE", callback=parse_size, help="Raw bytes in a block, such as 64K or 4M."
)
@output_options
@engine_options
@report_options
def compress(
    files: tuple[str, ...],
    preset: str,
    block_size: int | None,
    outputs: Outputs,
    engine: Engine,
    report: Report,
) -> None:
    """Compress each FILE to FILE.rhn.

    Presets, with their speeds on two CPU cores:

    \b
    fast     the network is frozen: 100 to 150 KB/s
    default  it learns as it codes, for any kind of text: 10 KB/s
    best     it learns after every ten bytes: smallest, 1.5 KB/s
    """  # noqa: D301 (click reads the backspace as: leave the lines as they are)
    let_idle_threads_sleep()
    from rhnzip.streams import compress_stream

    run = functools.partial(compress_stream, preset=preset, block_size=block_size, **asdict(engine))
    _transform(files, run, lambda file: file + SUFFIX, outputs, report, packing=True)


@cli.command()
@files_argument
@output_options
@engine_options
@report_options
def decompress(files: tuple[str, ...], outputs: Outputs, engine: Engine, report: Report) -> None:
    """Decompress each FILE.rhn to FILE."""
    let_idle_threads_sleep()
    from rhnzip.streams import decompress_stream

    run = functools.partial(decompress_stream, **asdict(engine))
    _transform(files, run, _raw_name, outputs, report, packing=False)


@cli.command("test")
@files_argument
@engine_options
@report_options
def check(files: tuple[str, ...], engine: Engine, report: Report) -> None:
    """Check that each FILE.rhn decompresses, and write nothing."""
    let_idle_threads_sleep()
    from rhnzip.streams import test_stream

    def verify(file: str) -> None:
        start = time.perf_counter()
        with _source(file) as source, report.progress(file, _status(file, source), packing=False) as progress:
            summary = test_stream(source, progress=progress, **asdict(engine))
        report.done(file, summary, time.perf_counter() - start, output=None, packing=False)

    each_file(files, verify, report)


@cli.command()
@files_argument
@report_options
def info(files: tuple[str, ...], report: Report) -> None:
    """Describe each FILE.rhn from its headers."""
    from rhnzip.streams import inspect_stream

    def describe(file: str) -> None:
        with _source(file) as source:
            report.frames(file, inspect_stream(source))

    each_file(files, describe, report)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per model.")
def models(as_json: bool) -> None:
    """List the built-in models."""
    from rhnzip.models.library import available

    for card in available():
        if as_json:
            click.echo(json.dumps(asdict(card)))
        else:
            click.echo(f"{card.name}  {card.id_hex}  {card.parameters:,} parameters  {card.description}")


def main() -> None:
    """Run the command line; a request to end (SIGTERM, SIGHUP) cleans up as Ctrl-C does."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in {"SIGTERM", "SIGHUP"} & set(dir(signal)):
        if signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:  # nohup wants SIGHUP ignored
            signal.signal(getattr(signal, name), end)
    cli(prog_name="rhnzip")


def _raw_name(file: str) -> str:
    stem = file.removesuffix(SUFFIX)
    if stem == file or not os.path.basename(stem):
        raise RhnzipError(
            f"has no {SUFFIX} at the end of its name to take off; name the output with -o, or use -c"
        )
    return stem


def _label(file: str) -> str:
    """Return how to call `file` in a message."""
    return "standard input" if file == STDIO else click.format_filename(file)


def _ratio(raw: int, packed: int) -> list[str]:
    """Return what `raw` bytes and `packed` ones say about each other; nothing for an empty original."""
    return [f"{100 * packed / raw:.1f} %", f"{8 * packed / raw:.2f} bits per byte"] if raw else []


def _standard(stream: TextIO | None, name: str) -> BinaryIO:
    if stream is None:
        raise RhnzipError(f"the standard {name} is closed")
    return stream.buffer


def _source(file: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(_standard(sys.stdin, "input")) if file == STDIO else open_input(file)


def _status(file: str, source: BinaryIO) -> os.stat_result | None:
    return None if file == STDIO else os.fstat(source.fileno())


@contextmanager
def _flushed(sink: BinaryIO) -> Iterator[BinaryIO]:
    yield sink
    sink.flush()


def _transform(
    files: tuple[str, ...],
    run: Callable[..., Summary],
    rename: Callable[[str], str],
    outputs: Outputs,
    report: Report,
    *,
    packing: bool,
) -> None:
    """Compress (`packing`) or decompress every file with `run`."""
    outputs.check(files, report)

    def transform(file: str) -> None:
        path = outputs.path(file, rename)
        start = time.perf_counter()
        with (
            _source(file) as source,
            outputs.open(path, _status(file, source), packing=packing) as sink,
            report.progress(file, _status(file, source), packing=packing) as progress,
        ):
            summary = run(source, sink, progress=progress)
        if outputs.remove:
            os.unlink(file)
        report.done(file, summary, time.perf_counter() - start, output=path, packing=packing)

    each_file(files, transform, report)


def let_idle_threads_sleep() -> None:
    """Set what torch's threads read when torch is loaded: coding/workers.py then puts them to use."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def each_file(files: tuple[str, ...], work: Callable[[str], None], report: Report) -> None:
    """Do `work` with every file, and end with status 1 if one failed."""
    if report.verbose:
        logging.basicConfig(format="rhnzip: %(message)s")
        logging.getLogger("rhnzip").setLevel(logging.INFO)
    gc.freeze()  # what is imported stays: looking through it again and again takes a tenth of the time
    failed = False
    for file in files:
        try:
            work(file)
        except BrokenPipeError:  # nobody reads any more: click ends the command without a word
            raise
        except RhnzipError as error:
            report.failed(file, str(error))
            failed = True
        except MemoryError:
            report.failed(file, "not enough memory")
            failed = True
        except OSError as error:
            where = "" if error.filename in (None, file) else f"{error.filename}: "
            report.failed(file, f"{where}{error.strerror or error}")
            failed = True
    if failed:
        click.get_current_context().exit(1)
