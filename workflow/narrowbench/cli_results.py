"""Commands that work on stored rows: what they become, and what follows from them. None needs JAX or a device."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

RAW = Path("results", "raw")
RECORD = Path("results", "record")

Frame = Annotated[Path, typer.Option(help="Frame of results, as `collect` writes it.")]


@app.command()
def collect(
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    record: Annotated[Path, typer.Option(help="Folder of the data of record.")] = RECORD,
    raw: Annotated[list[Path] | None, typer.Option(help="Folders of this machine's own results, to be joined.")] = None,
) -> None:
    """Gather stored rows into one checked table, the newest row of each case; no point may lie above its roof."""
    from narrowbench.report import frame, roofs
    from narrowbench.store import jsonl

    if not record.exists():
        raise ValueError(f"{record}: no such folder of results; name it, or run this in the checkout")
    frames = [frame.collect(jsonl.newest(jsonl.read(_files(record))), "record")]
    if raw:
        frames.append(frame.collect(jsonl.newest(jsonl.read(_files(*raw))), "local"))
    joined = frame.join(frames)
    roofs.check(joined)
    frame.write(joined, out)
    counts = joined.origin.value_counts()
    print(f"{out}: " + (", ".join(f"{count} rows {origin}" for origin, count in counts.items()) or "no rows"))


@app.command()
def promote(
    sources: Annotated[list[Path] | None, typer.Argument(help="Files of rows; all of results/raw if left out.")] = None,
    record: Annotated[Path, typer.Option(help="Folder of the data of record.")] = RECORD,
    replace: Annotated[bool, typer.Option("--replace", help="Replace rows of the record that differ.")] = False,
    allow_dirty: Annotated[bool, typer.Option("--allow-dirty", help="Take rows of an edited tree.")] = False,
) -> None:
    """Merge results of this machine into the data of record."""
    from narrowbench.store.promote import promote as merge

    for promotion in merge(named_files(sources) or _files(RAW), record, replace=replace, allow_dirty=allow_dirty):
        print(promotion)


@app.command()
def figure(
    stems: list[str],
    frame: Frame,
    out: Annotated[Path, typer.Option(help="Folder to draw into.")],
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the figures.")] = 1,
) -> None:
    """Draw figures as PDF, SVG and PNG."""
    from narrowbench.report.catalogue import draw

    draw(stems, frame, out, processes)


@app.command()
def table(
    stems: list[str],
    frame: Frame,
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
    numbers: Annotated[Path | None, typer.Option(help="typst module of the figures in the paper's text.")] = None,
) -> None:
    """Write tables as LaTeX, CSV, Markdown and typst, and every figure of the paper's text, by name."""
    from narrowbench.report.catalogue import tabulate

    tabulate(stems, frame, out, numbers)


@app.command()
def paper(out: Annotated[Path, typer.Option(help="PDF to write; its source has the same stem, beside it.")]) -> None:
    """Typeset the paper from its source and what was generated for it."""
    from narrowbench.report.paper import typeset

    typeset(out)


@app.command()
def report(frame: Frame, out: Annotated[Path, typer.Option(help="Page to write; `figures/` lies beside it.")]) -> None:
    """Write one offline page of this machine's own run beside the record."""
    from narrowbench.report.page import write

    write(frame, out, out.parent / "figures")


@app.command()
def project(
    scenario: Annotated[str | None, typer.Option(help="Scenario of configs/projections.yaml to start from.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    hours_per_day: Annotated[float | None, typer.Option(help="Hours that they run; 24 if left out.")] = None,
    gemm_share: Annotated[float | None, typer.Option(help="Share of a step's time that is GEMM.")] = None,
    gain: Annotated[float | None, typer.Option(help="Gain of the kernel, 0.1 for 10 percent.")] = None,
    gain_in: Annotated[str | None, typer.Option(help="throughput (if left out) or time.")] = None,
    power_w: Annotated[float | None, typer.Option(help="What a GPU draws in the hours saved.")] = None,
    pue: Annotated[float | None, typer.Option(help="Power of the site over that of its computers.")] = None,
    price_per_kwh: Annotated[float | None, typer.Option(help="Price of energy.")] = None,
    currency: Annotated[str | None, typer.Option(help="Of the price; USD if left out.")] = None,
    carbon_kg_per_kwh: Annotated[float | None, typer.Option(help="CO2e of a kWh.")] = None,
) -> None:
    """Work out what a kernel's gain is worth a day; without options, the published claims."""
    options = {name: value for name, value in locals().items() if name != "scenario" and value is not None}
    from narrowbench.models.hardware import load_profiles
    from narrowbench.models.project import load_projections, saving_text, scenario_of, worked_text

    projections = load_projections()
    if scenario is None and not options:
        print(worked_text(projections, load_profiles()))
    else:
        print(saving_text(scenario_of(scenario, options, projections)))


def _files(*folders: Path) -> list[Path]:
    """Files of rows below folders; one that is not there has none."""
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is a file where a folder of results is wanted; name a folder")
    return sorted(path for folder in folders for path in folder.rglob("*.jsonl") if not path.is_dir())


def named_files(sources: list[Path] | None) -> list[Path] | None:
    """The files that were named. Raises OSError for one that cannot be read."""
    for path in sources or ():
        path.open("rb").close()
    return sources
