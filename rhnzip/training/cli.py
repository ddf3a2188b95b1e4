"""The commands `train`, `export` and `eval`: parse, call the library, print.

Whatever computes is imported inside the commands, as in `rhnzip.cli`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from rhnzip import __version__
from rhnzip.cli import Report, each_file, files_argument, parse_size
from rhnzip.errors import TrainingError
from rhnzip.training.recipe import Optimizer, Recipe, Schedule
from rhnzip.training.recipes import PRESETS

if TYPE_CHECKING:
    from rhnzip.models.modelfile import Model
    from rhnzip.training import loop

NETWORK = {"cell": "rhn", "units": 512, "depth": 4, "embedding": 256}
"""What `train` trains where neither a preset nor an option says otherwise."""

CHECKPOINT_SUFFIX = ".pt"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*options: Decorator) -> Decorator:
    """Join options into one decorator, in the order of the help."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def _size(flag: str, help_text: str, **settings: Any) -> Decorator:
    return click.option(flag, metavar="SIZE", callback=parse_size, help=help_text, **settings)


def _recipe_option(name: str, help_text: str, **settings: Any) -> Decorator:
    """An option for a field of `Recipe`: None where it is not given, since a preset may set the field."""
    default = str(next(field.default for field in fields(Recipe) if field.name == name))
    return click.option(f"--{name.replace('_', '-')}", help=help_text, show_default=default, **settings)


def _parse_settings(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any] | None:
    """NAME=VALUE pairs, the values as TOML writes them; a bare word is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (separator and name.isidentifier() and value):
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        try:
            settings[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = value
    return settings or None


network_options = _options(
    click.option("--cell", metavar="NAME", show_default="rhn", help="Kind of network: docs/training.md."),
    click.option(
        "--set",
        "cell_settings",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parse_settings,
        help="A setting of the cell, such as fast_units=700; may be repeated.",
    ),
    click.option("--units", metavar="N", type=int, show_default="512", help="Width of the state."),
    click.option("--depth", metavar="N", type=int, show_default="4", help="Highway layers per byte."),
    click.option(
        "--embedding",
        metavar="N",
        type=int,
        show_default="256",
        help="Width of the bytes' embedding; it is folded away at export.",
    ),
    click.option(
        "--uncoupled", is_flag=True, default=None, help="Give the carry gates weights of their own."
    ),
    click.option(
        "--gate-bias",
        metavar="X",
        type=float,
        show_default="-2; uncoupled: 0",
        help="Bias of the transform gates at the start; below 0, layers start by carrying.",
    ),
    click.option(
        "--init-range",
        metavar="X",
        type=click.FloatRange(min=0),
        show_default="1 / sqrt(inputs)",
        help="Weights start uniform between -X and X.",
    ),
)

recipe_options = _options(
    _recipe_option(
        "total_bytes",
        "Length of the run in training bytes, such as 100M.",
        metavar="SIZE",
        callback=parse_size,
    ),
    _recipe_option("optimizer", "How to step.", type=click.Choice(get_args(Optimizer))),
    _recipe_option("rate", "Learning rate at its peak.", metavar="X", type=float),
    _recipe_option("schedule", "How the rate changes.", type=click.Choice(get_args(Schedule))),
    _recipe_option("warmup", "Cosine: share of the run over which the rate rises.", metavar="X", type=float),
    _recipe_option("final_rate", "Cosine: the last rate, as a share of the peak.", metavar="X", type=float),
    _recipe_option("decay", "Zilly: divisor of the rate per epoch.", metavar="X", type=float),
    _recipe_option("decay_after", "Zilly: epochs at the full rate.", metavar="N", type=int),
    _recipe_option("lanes", "Sequences trained in parallel.", metavar="N", type=int),
    _recipe_option("segment", "Bytes through which gradients run back.", metavar="N", type=int),
    _recipe_option(
        "clip",
        "Largest norm of the gradient of the loss in nats, summed over a segment, averaged over lanes.",
        metavar="X",
        type=float,
    ),
    _recipe_option("weight_decay", "L2 penalty (sgd), decoupled decay (adam).", metavar="X", type=float),
    _recipe_option("drop_symbol", "Dropout of whole symbols.", metavar="X", type=float),
    _recipe_option("drop_input", "Dropout of embedding units.", metavar="X", type=float),
    _recipe_option("drop_hidden", "Dropout of state units between layers.", metavar="X", type=float),
    _recipe_option("drop_output", "Dropout of state units before the output.", metavar="X", type=float),
    _recipe_option("drop_gate", "HyperRHN: dropout of transform gates.", metavar="X", type=float),
    _recipe_option(
        "reset", "Chance per lane and segment that the state starts anew.", metavar="X", type=float
    ),
    _recipe_option("seed", "Of weights, order of the text and dropout.", metavar="N", type=int),
)


@click.command()
@click.argument("text", metavar="MIX")
@click.option("-o", "--output", "directory", metavar="DIR", required=True, help="Where the run is kept.")
@click.option("--name", metavar="NAME", help="The model's name.  [default: DIR's name]")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    metavar="NAME",
    help="Begin with a network of the papers, and how it was trained; docs/training.md lists them.",
)
@click.option("--resume", is_flag=True, help="Continue the run in DIR where its checkpoint was made.")
@click.option(
    "--start-from",
    metavar="CHECKPOINT",
    help="Begin with the network that another run left; the recipe is this run's own.",
)
@network_options
@recipe_options
@click.option("--device", default="cpu", show_default=True, help="Where to compute, such as cpu or cuda.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="Type of the matrix products; auto is bfloat16 where the device has it.",
)
@click.option("--threads", metavar="N", type=click.IntRange(min=1), help="How many threads compute.")
@_size("--log-every", "Training bytes between two lines of the log.", default="1M", show_default=True)
@_size("--valid-every", "Training bytes between two validations.", default="8M", show_default=True)
@click.option(
    "--save-every",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Time between two checkpoints.",
)
def train(
    text: str,
    directory: str,
    name: str | None,
    preset: str | None,
    resume: bool,
    start_from: str | None,
    device: str,
    dtype: str,
    threads: int | None,
    log_every: int,
    valid_every: int,
    save_every: float,
    **settings: Any,
) -> None:
    """Train a network on MIX, and export it as a model.

    MIX is a TOML file that names texts (docs/training.md), or a text itself, whose last 5 % are then held
    out. DIR gets checkpoint.pt, log.csv, and at the end NAME.safetensors with its card NAME.md. Ctrl-C saves
    the run.
    """
    import torch

    from rhnzip.models.registry import make_cell
    from rhnzip.training.data import load_data
    from rhnzip.training.export import check_name
    from rhnzip.training.loop import CHECKPOINT_NAME, Trainer, read_checkpoint

    folder = Path(directory)
    model_name = name or folder.resolve().name
    check_name(model_name)
    checkpoint = folder / CHECKPOINT_NAME
    if checkpoint.exists() and not resume:
        raise TrainingError(f"{folder} holds a run; continue it with --resume, or choose another directory")
    if resume and start_from:
        raise click.UsageError("--resume continues a run, --start-from begins one: give one of them")
    if threads is not None:
        torch.set_num_threads(threads)
    with _memory_errors():
        kept = read_checkpoint(checkpoint) if resume else None
        network, recipe = _plan(preset, kept, settings)
        if start_from:
            network = read_checkpoint(Path(start_from))["config"]
        cell, mix = make_cell(network), load_data(Path(text), recipe.seed)
        trainer = Trainer(cell, recipe, mix, device, None if dtype == "auto" else getattr(torch, dtype))
        if resume:
            trainer.load(checkpoint)
        elif start_from:
            trainer.start_from(Path(start_from))
        with _ending_signals() as ended_by, _train_progress(trainer, model_name) as (progress, report):
            trainer.run(
                folder,
                report,
                log_every=log_every,
                valid_every=valid_every,
                save_every_seconds=save_every,
                progress=progress,
                stop=lambda: ended_by() > 0,
            )
    if trainer.bytes_done < recipe.total_bytes:
        again = shlex.join(["rhnzip", "train", text, "-o", directory, "--resume"])
        again += f" --name {model_name}" if name else ""
        click.echo(f"rhnzip: stopped and saved; to continue: {again}", err=True)
        click.get_current_context().exit(128 + ended_by())
    _export(checkpoint, folder / f"{model_name}.safetensors", model_name, mix.valid, mix.train, None)


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option(
    "-o", "--output", "path", metavar="MODEL", required=True, help="The model file, NAME.safetensors."
)
@click.option("--name", metavar="NAME", help="The model's name.  [default: that of the file]")
@click.option("--description", metavar="TEXT", help="One line for `rhnzip models`.")
@click.option(
    "--mix", metavar="MIX", help="Measure on the held-out texts of the mix or text it was trained on."
)
@click.option(
    "--valid", metavar="FILE", multiple=True, help="Measure on this held-out text; may be repeated."
)
@click.option("-f", "--force", is_flag=True, help="Overwrite files.")
def export(
    checkpoint: str,
    path: str,
    name: str | None,
    description: str | None,
    mix: str | None,
    valid: tuple[str, ...],
    force: bool,
) -> None:
    """Make a model file and its card from the CHECKPOINT of a training run.

    Its figures are bits per byte on the first 256 KiB of each held-out text.
    """
    from rhnzip.training.data import load_data, load_text
    from rhnzip.training.export import check_path
    from rhnzip.training.loop import read_checkpoint, recipe_of

    target = Path(path)
    check_path(target)
    for taken in (target, target.with_suffix(".md")):
        if taken.exists() and not force:
            raise TrainingError(f"{taken} already exists; -f overwrites it")
    texts, sample = {}, None
    if mix is not None:
        data = load_data(Path(mix), recipe_of(read_checkpoint(Path(checkpoint))).seed)
        texts, sample = dict(data.valid), data.train
    for file in valid:
        if Path(file).name in texts:
            raise TrainingError(f"two held-out texts are called {Path(file).name}; rename one")
        texts[Path(file).name] = load_text(Path(file))
    _export(Path(checkpoint), target, name or target.stem, texts, sample, description)


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(("enwik8", "text8", "ptb")))
@click.argument("path", metavar="PATH")
@click.option("-o", "--output", "directory", metavar="DIR", required=True, help="Where the parts go.")
def corpus(name: str, path: str, directory: str) -> None:
    """Split a corpus of the papers as they do, and write a mix to train on.

    NAME is enwik8, text8 (PATH is the file) or ptb (PATH is the folder of ptb.train.txt, ptb.valid.txt and
    ptb.test.txt). DIR gets NAME.train, NAME.valid, NAME.test and NAME.toml.
    """
    from rhnzip.training.corpora import write_corpus

    mix = write_corpus(name, Path(path), Path(directory))
    click.echo(
        f"{mix}: rhnzip train {mix} -o RUN, then rhnzip eval RUN/checkpoint.pt {mix.with_suffix('.test')}"
    )


@click.command("eval")
@click.argument("model", metavar="MODEL")
@files_argument
@click.option(
    "--limit", metavar="SIZE", callback=parse_size, help="Measure on the first SIZE bytes of each FILE."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per FILE.")
def evaluate(model: str, files: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Measure how many bits MODEL spends on a byte of each FILE.

    MODEL is a built-in model's name, a model file, or a checkpoint (.pt). Exact is what an archive's payload
    costs; float is the network of a checkpoint as it was trained; dequantised is a model's int8 weights in
    float arithmetic. The text is cut into lanes of about 8 kB that each start knowing nothing. A FILE.xz is
    unpacked.
    """
    from rhnzip.exact.backend import get_backend
    from rhnzip.models.library import load_model
    from rhnzip.training import export as exporting
    from rhnzip.training.data import load_text

    backend = get_backend(general=True)
    identity: dict[str, str | None]
    if model.endswith(CHECKPOINT_SUFFIX):
        trained = exporting.load_trained(Path(model))
        sample = load_text(Path(files[0])) if exporting.needs_sample(trained.cell) else None
        weights = exporting.quantised(trained, sample)
        scores = exporting.trained_scores(trained, weights, backend)
        identity = {"model": model, "id": None}
    else:
        loaded = load_model(model)
        scores = exporting.model_scores(loaded, backend)
        identity = {"model": loaded.name, "id": loaded.id.hex()}
    report = Report(quiet=False, verbose=False, as_json=as_json)
    if not as_json:
        click.echo("".join(f"{head:>14}" for head in ("bytes", *scores)) + "  file")

    def work(file: str) -> None:
        text = load_text(Path(file))[:limit]
        with _bar(len(text), click.format_filename(file, shorten=True)) as reached:
            bpc = exporting.measure(scores, text, reached)
        if as_json:
            rounded = {name: round(value, 6) for name, value in bpc.items()}
            click.echo(json.dumps({"file": file, "ok": True, **identity, "bytes": len(text), "bpc": rounded}))
        else:
            figures = "".join(f"{value:>14.4f}" for value in bpc.values())
            click.echo(f"{len(text):>14,}{figures}  {click.format_filename(file)}")

    each_file(files, work, report)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("file", metavar="FILE")
@click.option(
    "-o", "--output", "image", metavar="PNG", help="Draw everything into this file (needs matplotlib)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(model: str, file: str, image: str | None, as_json: bool) -> None:
    """Look into MODEL while it reads FILE, as the papers do.

    Gate activity and lesions by depth (networks of highway layers), spectral radius of the temporal Jacobian,
    gradient norm by distance in time (1, 2, 5, 10, 25 and 50 steps), change of each state vector, bits by
    position in the word. MODEL is a model or a checkpoint (.pt).
    """
    from rhnzip.models.library import load_model
    from rhnzip.training import analysis
    from rhnzip.training import export as exporting
    from rhnzip.training.data import load_text

    if model.endswith(CHECKPOINT_SUFFIX):
        trained = exporting.load_trained(Path(model))
        cell = trained.cell
        folded = cell.fold({name: value.detach() for name, value in trained.parameters.items()})
    else:
        loaded = load_model(model)
        cell, folded = loaded.cell, exporting.dequantised(loaded)
    found = analysis.analyse(cell, folded, load_text(Path(file)))
    if image is not None:
        analysis.picture(found, f"{model} on {file}", Path(image))
    if as_json:
        click.echo(json.dumps(found.summary()))
        return
    for name, value in found.summary().items():
        if value != []:
            click.echo(f"{name.replace('_', ' ')}: {value}")


def _plan(
    preset: str | None, kept: dict[str, Any] | None, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], Recipe]:
    """Settings of network and recipe: those of the run that is resumed or of the preset, then the options."""
    from rhnzip.training.loop import recipe_of

    given = {key: value for key, value in settings.items() if value is not None}
    network, recipe = dict(NETWORK), Recipe()
    if kept is not None:
        network, recipe = dict(kept["config"]), recipe_of(kept)
    if preset is not None:
        network, recipe = dict(PRESETS[preset].network), PRESETS[preset].recipe
    if given.get("cell", network["cell"]) != network["cell"]:
        network = {}
    given |= given.pop("cell_settings", {})
    if given.pop("uncoupled", False):
        given["coupled"] = False
        if kept is None:  # carry gates that start open let the state of such a network grow without bound
            given.setdefault("gate_bias", 0.0)
    changes = {field.name: given.pop(field.name) for field in fields(Recipe) if field.name in given}
    return network | given, dataclasses.replace(recipe, **changes)


def _export(
    checkpoint: Path,
    path: Path,
    name: str,
    texts: Mapping[str, Any],
    sample: Any,
    description: str | None,
) -> None:
    """Export a checkpoint and print what was made."""
    from rhnzip.exact.backend import get_backend
    from rhnzip.training import export as exporting

    trained = exporting.load_trained(checkpoint)
    total = sum(min(len(text), exporting.MEASURED_BYTES) for text in texts.values())
    with _bar(total, f"measuring {name}") as reached:
        model = exporting.export_model(
            trained,
            name,
            get_backend(general=trained.cell.general),
            release=__version__,
            texts=texts,
            sample=sample,
            description=description,
            progress=reached,
        )
    card = exporting.write_model(model, path)
    click.echo(f"{path}, {card}: {name}, id {model.id.hex()}, {model.card['parameters']:,} parameters")
    _print_figures(model)


def _print_figures(model: Model) -> None:
    if not model.card["bpc"]:
        return
    click.echo(f"{'float':>8}{'exact':>8}  bits per byte of")
    for text, bpc in model.card["bpc"].items():
        click.echo(f"{bpc['float']:>8.4f}{bpc['exact']:>8.4f}  {text}")


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Say in a line that there is not enough memory, which torch reports in several ways."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise TrainingError(
            "not enough memory; train fewer units, layers or lanes, or a shorter segment"
        ) from error


@contextmanager
def _ending_signals() -> Iterator[Callable[[], int]]:
    """Give a function that tells which signal asked to end, 0 if none did; a second one ends at once."""
    caught = 0

    def note(number: int, _frame: object) -> None:
        nonlocal caught
        if caught:
            raise KeyboardInterrupt
        caught = number

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, note)) for number in numbers]
    try:
        yield lambda: caught
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _bar(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Give a function that moves a bar to where the work stands; without a terminal there is no bar."""
    from tqdm import tqdm

    with tqdm(
        total=total,
        desc=label,
        unit="B",
        unit_scale=True,
        leave=False,
        dynamic_ncols=True,
        disable=not _on_terminal(),
    ) as bar:

        def reached(done: int) -> None:
            bar.update(done - bar.n)

        yield reached


def _on_terminal() -> bool:
    """Whether a person looks at the standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _train_progress(
    trainer: loop.Trainer, name: str
) -> Iterator[tuple[Callable[[int], None], Callable[[loop.Report], None]]]:
    """Give what to call after each step and at each line of the log: a bar on a terminal, else lines."""
    from tqdm import tqdm

    total, on_terminal = trainer.recipe.total_bytes, _on_terminal()
    with tqdm(
        total=total,
        initial=trainer.bytes_done,
        desc=name,
        unit="B",
        unit_scale=True,
        dynamic_ncols=True,
        disable=not on_terminal,
    ) as bar:

        def progress(done: int) -> None:
            bar.update(min(done, total) - bar.n)

        def report(line: loop.Report) -> None:
            valid = "".join(f"  {text} {bpc:.4f}" for text, bpc in line.valid.items())
            if on_terminal:
                bar.set_postfix_str(f"{line.bpc:.4f} bits per byte")
                if valid:
                    bar.write(f"{line.bytes_done:,} bytes: train {line.bpc:.4f}{valid}", file=sys.stderr)
                return
            left = max(0, total - line.bytes_done) / line.bytes_per_second
            click.echo(
                f"{line.bytes_done:,} of {total:,} bytes: train {line.bpc:.4f}{valid} bits per byte, "
                f"{line.bytes_per_second / 1024:.1f} KiB/s, {_duration(left)} left",
                err=True,
            )

        yield progress, report


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
