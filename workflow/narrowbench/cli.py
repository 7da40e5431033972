"""The command line. Commands import what they need when they run: `narrowbench --help` and every figure stay quick."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from narrowbench import cli_results
from narrowbench.cli_results import RAW, named_files
from narrowbench.config import ROOT
from narrowbench.errors import os_error_text
from narrowbench.store.rows import Mode
from narrowbench.store.strict import MOST
from narrowgemm.errors import UnsupportedError

app = typer.Typer(
    name="narrowbench",
    help="Measure narrow-precision GEMM, and turn the results into tables, figures and a paper.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_results.app)


def main() -> None:
    """Run a command. What the user can mend ends with one message and status 2; a bug ends with its traceback."""
    try:
        app()
    except (ValueError, UnsupportedError, OSError) as error:
        is_of_a_library = isinstance(error, OSError) and error.errno is None
        if "--traceback" in sys.argv or is_of_a_library:
            raise
        print(f"narrowbench: {os_error_text(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        sys.exit(2)


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")] = False,
) -> None:
    """Options of every command; `main` reads them."""


@app.command()
def measure(
    device: Annotated[str, typer.Option(help="Slug of a device of this machine; `doctor` lists them.")],
    kernel: Annotated[str | None, typer.Option(help="Kernel to measure, with --suite.")] = None,
    suite: Annotated[str | None, typer.Option(help="Suite of shapes, with --kernel.")] = None,
    roofs: Annotated[bool, typer.Option("--roofs", help="Measure the device's own roofs instead.")] = False,
    config: Annotated[Path, typer.Option(help="Campaign that says how.")] = ROOT / "configs" / "main.yaml",
    out: Annotated[Path | None, typer.Option(help="File to append to; below results/raw if left out.")] = None,
) -> None:
    """Measure what is not yet in the file, one row a case, and stamp the file once every case has its row."""
    if (kernel is None) != (suite is None) or roofs == (kernel is not None):
        raise ValueError("measure: give either --kernel and --suite, or --roofs")
    from narrowbench.config import load_protocol
    from narrowbench.measure import runner
    from narrowbench.measure.devices import device_named
    from narrowbench.pipeline import campaign_of

    campaign = campaign_of(config)
    protocol = load_protocol(campaign)
    found = device_named(device)
    if kernel is not None and suite is not None:
        out = out or RAW / device / kernel / f"{suite}.jsonl"
        report = runner.run_job(found, kernel, suite, campaign, protocol, out)
    else:
        out = out or RAW / device / "roofs.jsonl"
        report = runner.run_roofs(found, campaign, protocol, out)
    print(f"{out}: {_counted(report.done)}, {report.skipped} already there, {len(report.left)} left")
    for name in report.left:
        print(f"  left for another run: {name}")
    out.with_suffix(".done").touch()


@app.command()
def campaign(
    device: Annotated[str, typer.Option(help="Slug of a device of this machine; `doctor` lists them.")],
    config: Annotated[Path, typer.Option(help="Campaign to go through.")] = ROOT / "configs" / "record.yaml",
    raw: Annotated[Path, typer.Option(help="Folder of results to append to.")] = RAW,
    budget_s: Annotated[float | None, typer.Option(min=0, help="Seconds after which no case is begun.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Of this kernel alone; may be given several times.")] = None,
    suite: Annotated[list[str] | None, typer.Option(help="Of this suite alone; may be given several times.")] = None,
) -> None:
    """Measure a whole campaign, or part of it, on one device in one process, and go on where the last run stopped."""
    from narrowbench.config import load_protocol
    from narrowbench.measure import runner
    from narrowbench.measure.devices import device_named
    from narrowbench.pipeline import campaign_of

    planned = campaign_of(config)
    part = runner.Part(kernel, suite)
    for out, report in runner.run_campaign(device_named(device), planned, load_protocol(planned), raw, budget_s, part):
        print(f"{out}: {_counted(report.done)}, {report.skipped} already there, {len(report.left)} left", flush=True)


@app.command()
def check(
    device: Annotated[str, typer.Option(help="Slug of a device of this machine; `doctor` lists them.")],
    config: Annotated[Path, typer.Option(help="Campaign whose kernels and shapes are checked.")] = ROOT
    / "configs"
    / "record.yaml",
    kernel: Annotated[list[str] | None, typer.Option(help="This kernel alone; may be given several times.")] = None,
    suite: Annotated[list[str] | None, typer.Option(help="This suite alone; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MOST, help="Of the operands; a fresh one if left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Report to write; below results/raw if left out.")] = None,
) -> None:
    """Check every kernel of a campaign on every shape against float64, timing nothing; status 1 if one is wrong."""
    import secrets

    from narrowbench.config import load_protocol
    from narrowbench.measure.checking import cases_to_check, run_checks, told
    from narrowbench.measure.devices import device_named
    from narrowbench.measure.runner import Part
    from narrowbench.pipeline import campaign_of

    campaign, found = campaign_of(config), device_named(device)
    cases = cases_to_check(campaign, found, Part(kernel, suite))
    out = out or RAW / device / "checks.md"
    counts = run_checks(found, cases, load_protocol(campaign), secrets.randbits(31) if seed is None else seed, out)
    print(f"{out}: {told(counts)}")
    if counts["wrong"] or counts["failed"]:
        raise typer.Exit(1)


@app.command()
def plan(
    config: Annotated[Path, typer.Option(help="Campaign to look at.")] = ROOT / "configs" / "record.yaml",
) -> None:
    """Say how many cases a campaign has and how long sampling them takes, by class of device and job."""
    from narrowbench.config import load_protocol
    from narrowbench.models.boardtime import told
    from narrowbench.pipeline import campaign_of

    planned = campaign_of(config)
    print(f"{config}: {planned.title}")
    for line in told(planned, load_protocol(planned)):
        print(line)


@app.command()
def versus(
    kernels: Annotated[
        list[str], typer.Argument(help="Two or more kernels; the first is what the others are held to.")
    ],
    device: Annotated[str, typer.Option(help="Slug of a device of this machine; `doctor` lists them.")],
    shape: Annotated[tuple[int, int, int] | None, typer.Option(help="M N K.")] = None,
    suite: Annotated[list[str] | None, typer.Option(help="All its shapes; may be given several times.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Both modes if left out.")] = None,
    out_format: Annotated[str, typer.Option(help="Format of the result.")] = "bf16",
    distribution: Annotated[str, typer.Option(help="Data of the operands.")] = "normal",
    epilogue: Annotated[str, typer.Option(help="What is done before the store, such as scales_bias_gelu.")] = "none",
    groups: Annotated[
        tuple[int, str] | None, typer.Option(help="Count and kind: batched, equal or ragged; M is the rows of all.")
    ] = None,
    config: Annotated[Path, typer.Option(help="Campaign whose protocol is used.")] = ROOT / "configs" / "main.yaml",
    budget_s: Annotated[float | None, typer.Option(min=0, help="Seconds after which no shape is begun.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to append to; below results/raw if left out.")] = None,
) -> None:
    """Measure kernels against each other, shape by shape, taking turns in random order, and print their ratios."""
    from narrowbench.config import load_protocol, load_suite, parse
    from narrowbench.errors import ConfigError
    from narrowbench.measure import runner
    from narrowbench.measure.devices import device_named
    from narrowbench.measure.turns import ratios
    from narrowbench.pipeline import campaign_of
    from narrowbench.store import jsonl
    from narrowbench.store.groups import Groups

    protocol = load_protocol(campaign_of(config))
    out = out or RAW / device / "interleaved.jsonl"
    modes: tuple[Mode, ...] = (mode,) if mode else ("burst", "sustained")
    if bool(suite) == (shape is not None) or (suite and groups is not None):
        raise ConfigError("versus takes a --shape, which may have --groups, or suites: give one of them")
    given = None if groups is None else dict(zip(("count", "kind"), groups, strict=True))
    many = None if given is None else parse(Groups, given, "versus: groups")
    shapes = [each for name in suite or () for each in load_suite(name).shapes]
    shapes += [] if shape is None else [runner.shape_given(shape, many)]
    report = runner.run_compare(
        device_named(device), kernels, shapes, modes, protocol, out, out_format, distribution, 0, epilogue, budget_s
    )
    rows = jsonl.read([out])
    for each in shapes:
        for line in ratios(rows, kernels, each):
            print(line if len(shapes) == 1 else f"{each.m}×{each.n}×{each.k}: {line}")
    print(f"{out}: {_counted(report.done)}, {report.skipped} already there, {len(report.left)} left")


@app.command()
def counters(
    device: Annotated[str, typer.Option(help="Slug of an NVIDIA GPU of this machine; `doctor` lists them.")],
    kernel: Annotated[str, typer.Option(help="Kernel to launch.")],
    shape: Annotated[tuple[int, int, int], typer.Option(help="M N K.")],
    config: Annotated[
        list[str] | None, typer.Option(help="Config as JSON, several times for several; else the kernel's own choice.")
    ] = None,
    operands: Annotated[
        tuple[str, str] | None, typer.Option(help="Formats of a and b; else the kernel's first.")
    ] = None,
    out_format: Annotated[str, typer.Option(help="Format of the result.")] = "bf16",
    raw: Annotated[Path, typer.Option(help="Folder of results; rows go to <device>/counters/<kernel>.jsonl.")] = RAW,
) -> None:
    """Count bytes and sectors of one launch with Nsight Compute: what came from memory, and what from the L2."""
    from narrowbench.measure.counters import counters_cases, run_counters
    from narrowbench.measure.devices import device_named

    cases = counters_cases(kernel, shape, config or (), operands, out_format)
    out = raw / device / "counters" / f"{kernel}.jsonl"
    report = run_counters(device_named(device), cases, out)
    print(f"{out}: {_counted(report.done)}, {report.skipped} already there")


@app.command()
def tune(
    device: Annotated[str, typer.Option(help="Slug of a device of this machine; `doctor` lists them.")],
    kernel: Annotated[list[str], typer.Option(help="Kernel to tune; may be given several times.")],
    suite: Annotated[list[str], typer.Option(help="Suite of shapes to tune for; may be given several times.")],
    top: Annotated[int | None, typer.Option(min=1, help="Try so many of the kernel's first guesses; else all.")] = None,
    budget_s: Annotated[float | None, typer.Option(min=0, help="Begin no further shape after so many seconds.")] = None,
    operands: Annotated[
        tuple[str, str] | None, typer.Option(help="Formats of a and b; else the kernel's first.")
    ] = None,
    out_format: Annotated[str, typer.Option(help="Format of the result.")] = "bf16",
    compile_threads: Annotated[int | None, typer.Option(min=1, help="As many as CPUs if left out.")] = None,
    compile_processes: Annotated[
        int | None, typer.Option(min=1, help="Compile in so many processes instead, for kinds of GPU that we know.")
    ] = None,
    raw: Annotated[
        Path, typer.Option(help="Folder of results; rows go to <device>/tuning/<kernel>/<suite>.jsonl.")
    ] = RAW,
) -> None:
    """Find the fastest config for each shape that has no row yet; `tune-tables` then makes it the default."""
    from narrowbench.config import load_protocol
    from narrowbench.measure.devices import device_named, usable_cores
    from narrowbench.measure.tuning import run_tune, tuning_cases

    jobs = [
        (raw / device / "tuning" / name / f"{shapes}.jsonl", tuning_cases(name, shapes, top, operands, out_format))
        for name in kernel
        for shapes in suite
    ]
    if compile_threads and compile_processes:
        raise ValueError("tune: --compile-threads and --compile-processes exclude each other; leave one out")
    threads = compile_threads or usable_cores()
    for out, report in run_tune(device_named(device), jobs, load_protocol(), threads, compile_processes, budget_s):
        print(f"{out}: {_counted(report.done)}, {report.skipped} already there, {len(report.left)} left")


@app.command("tune-tables")
def tune_tables(
    sources: Annotated[list[Path] | None, typer.Argument(help="Files of searches; else those of results/raw.")] = None,
) -> None:
    """Write the tuned tables of the library from stored searches, the newest of each problem."""
    from narrowbench.measure.tuned import write_tables
    from narrowbench.store import jsonl

    sources = named_files(sources) or sorted(RAW.glob("*/tuning/*/*.jsonl"))
    if not sources:
        raise ValueError(f"tune-tables: no search below {RAW}; run `narrowbench tune` first, or name files")
    written = write_tables(jsonl.read(sources))
    if not written:
        raise ValueError(f"tune-tables: no search in {len(sources)} files has found a config; run `narrowbench tune`")
    for line in written:
        print(line)


@app.command("compile")
def compile_(
    kernel: Annotated[str, typer.Option(help="Kernel to compile for GPUs that need not be here.")],
    out: Annotated[Path, typer.Option(help="File of rows to write.")],
    config: Annotated[Path, typer.Option(help="Campaign that says for which.")] = ROOT / "configs" / "main.yaml",
) -> None:
    """Compile a kernel for absent GPUs: a row of resources and instructions for each shape, config and target."""
    from narrowbench.measure.compiled import run_compile
    from narrowbench.pipeline import campaign_of
    from narrowbench.store.whole import whole

    campaign = campaign_of(config)
    with whole(out) as draft:
        counted = _counted(run_compile(kernel, campaign, draft))
    print(f"{out}: {counted}")


@app.command()
def space(
    kernel: Annotated[str, typer.Option(help="Kernel to compile with every config that it offers.")],
    config: Annotated[Path, typer.Option(help="Campaign that says for which.")] = ROOT / "configs" / "space.yaml",
    raw: Annotated[Path, typer.Option(help="Folder of results; rows go to <device>/space/<kernel>.jsonl.")] = RAW,
) -> None:
    """Compile a kernel's whole search space for absent GPUs, and go on where the last run stopped."""
    from narrowbench.measure.space import run_space
    from narrowbench.pipeline import campaign_of

    for line in run_space(kernel, campaign_of(config), raw):
        print(line, flush=True)
    stamp = raw / "space" / f"{kernel}.done"
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()


@app.command()
def doctor(
    device: Annotated[str | None, typer.Option(help="Try measuring on this device instead, for a few seconds.")] = None,
) -> None:
    """Say what this machine can do, and what is missing for the rest."""
    from narrowbench.doctor import examine, show, try_measuring
    from narrowbench.measure.devices import device_named

    show(try_measuring(device_named(device)) if device else examine())


@app.command(hidden=True)
def schema() -> None:
    """Print the JSON Schema of a campaign, which editors and Snakemake read."""
    import json

    from narrowbench.config import campaign_schema

    print(json.dumps(campaign_schema(), indent=2, ensure_ascii=False))


def _counted(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "nothing new"
