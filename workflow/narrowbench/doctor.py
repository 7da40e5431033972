"""What this machine can do, and what is missing for the rest. JAX is asked last, since importing it takes longest."""

import importlib
import importlib.metadata
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

from narrowbench.config import CONFIGS, ROOT, load_protocol
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.meters import open_meter
from narrowbench.measure.named import version_of
from narrowbench.measure.provenance import git_state

State = Literal["yes", "no", "note"]
_STYLE = {"yes": "green", "no": "red", "note": "yellow"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is there, what was seen, and what to do where it is not."""

    topic: str
    state: State
    seen: str
    remedy: str | None = None


def examine() -> Iterator[Finding]:
    """All findings, quick ones first."""
    yield Finding("Python", "yes", f"{sys.version.split()[0]} at {sys.executable}")
    yield from _packages()
    yield _sources()
    devices = local_devices()
    for device in devices:
        yield from _device(device)
    yield from _jax(devices)


def try_measuring(device: LocalDevice) -> Iterator[Finding]:
    """Every part of the measurement tried on this device, on something whose answer is known."""
    from narrowbench.measure.selfcheck import selfcheck

    states: dict[bool | None, State] = {True: "yes", False: "no", None: "note"}
    for check in selfcheck(device, load_protocol()):
        yield Finding(f"{device.slug}, {check.topic}", states[check.works], check.seen)


def show(findings: Iterator[Finding]) -> None:
    """Print each finding as it comes."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        colour = _STYLE[finding.state]
        console.print(f"[{colour}]{finding.state:>4}[/]  [bold]{escape(finding.topic)}[/]: {escape(finding.seen)}")
        if finding.remedy:
            console.print(f"      → {escape(finding.remedy)}")


def _packages() -> Iterator[Finding]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield _pins("pinned packages", project["dependencies"], "make run installs the lock")
    for extra, purpose in {"aot": "compiling for absent GPUs", "dev": "tests and checks"}.items():
        pins = project["optional-dependencies"][extra]
        yield _pins(f"extra {extra}, for {purpose}", pins, f"pip install -e '.[{extra}]'")
    yield _other_libraries()


def _other_libraries() -> Finding:
    """Packages whose GEMMs are baselines beside XLA's, on a GPU."""
    found = {name: version_of(name) for name in ("nvmath-python", "torch", "triton")}
    told = ", ".join(f"{name} {version or 'absent'}" for name, version in found.items())
    return Finding("baselines of other libraries, on a GPU", "yes" if all(found.values()) else "note", told)


def _pins(topic: str, pins: list[str], remedy: str) -> Finding:
    """Whether what is pinned is installed. Another version is worth a note only: rows name those they ran with."""
    missing, other = [], []
    for pin in pins:
        without_marker = pin.partition(";")[0]
        name, _, wanted = re.sub(r"\[.*?\]", "", without_marker).partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if found != wanted:
            other.append(f"{name} {found} (pinned {wanted})")
    if missing:
        return Finding(topic, "no", "missing: " + ", ".join(missing), remedy)
    if other:
        return Finding(topic, "note", "; ".join(other), remedy)
    return Finding(topic, "yes", f"{len(pins)} as pinned")


def _sources() -> Finding:
    """What the rows that are measured now would say of their sources."""
    commit, is_edited = git_state(ROOT)
    if commit is None:
        return Finding("sources", "no", "git cannot tell the commit", "results cannot be promoted from here")
    where = f"commit {commit[:8]} of {ROOT}"
    if is_edited:
        return Finding("sources", "note", f"{where}, edited", "commit before measuring for the record")
    return Finding("sources", "yes", f"{where}, unedited")


def _device(device: LocalDevice) -> Iterator[Finding]:
    topic = f"device {device.slug}"
    yield Finding(topic, "yes", f"{device.kind}, measured as class {device.device_class}")
    if (CONFIGS / "devices" / f"{device.model_slug}.yaml").exists():
        yield Finding(f"{topic}, profile", "yes", f"configs/devices/{device.model_slug}.yaml")
    else:
        remedy = "see CONTRIBUTING.md on adding a device"
        yield Finding(f"{topic}, profile", "note", "none: its roofline shows measured roofs alone", remedy)
    meter, reason = open_meter(device)
    if meter is not None:
        yield Finding(f"{topic}, energy", "yes", f"{meter.name}, of the {meter.scope}")
    else:
        yield Finding(f"{topic}, energy", "no", str(reason), "its rows carry no energy, with this reason")


def _jax(devices: tuple[LocalDevice, ...]) -> Iterator[Finding]:
    platforms = list(dict.fromkeys(device.platform for device in devices))
    os.environ["JAX_PLATFORMS"] = ",".join(platforms)  # it complains at length about plugins for what is not here
    try:
        jax: Any = importlib.import_module("jax")
    except ImportError as error:
        yield Finding("JAX", "no", str(error), "nothing can be measured; the paper can be rebuilt")
        return
    for platform in platforms:
        try:
            kinds = [device.device_kind for device in jax.devices(platform)]
        except RuntimeError as error:
            remedy = f"its devices cannot be measured; install the extra for {platform}"
            yield Finding(f"JAX on {platform}", "no", str(error).splitlines()[0], remedy)
        else:
            yield Finding(f"JAX on {platform}", "yes", f"{jax.__version__}, {len(kinds)} × {kinds[0]}")
