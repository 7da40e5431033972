"""What the Snakefile has to know and cannot say in a line: which jobs there are, and what each of them depends on."""

import hashlib
import os
import sys
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from narrowbench.config import CONFIGS, ROOT, Campaign, load_campaign, load_suite, parse
from narrowbench.errors import ConfigError
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.named import kernel_sha256, module_of
from narrowbench.sources import sources_sha256
from narrowgemm.errors import unknown_name
from narrowgemm.gemm.registry import kernel_module
from narrowgemm.targets import target_named
from narrowgemm.tune import table

SCHEMA = ROOT / "workflow" / "schemas" / "campaign.schema.json"


def use_checkout() -> None:
    """Let `python3 -m narrowbench` in a job mean this Python and this checkout, installed or not."""
    sources = [str(ROOT / name) for name in ("kernels", "workflow")]
    for name, first in (("PYTHONPATH", sources), ("PATH", [str(Path(sys.executable).parent)])):
        os.environ[name] = os.pathsep.join([*first, *filter(None, [os.environ.get(name)])])


def read_campaign(config: dict[str, Any]) -> Campaign:
    """The campaign that Snakemake's `config` describes. Raises ValueError that names key and nearest known name."""
    return _known(parse(Campaign, config, "campaign"))


def campaign_of(path: Path) -> Campaign:
    """The campaign of a file. Raises ValueError that names key and nearest known name."""
    return _known(load_campaign(path))


def _known(campaign: Campaign) -> Campaign:
    """The campaign, if its suites, kernels and targets are known."""
    for suite in campaign.suites():
        load_suite(suite)
    for planned in chain(*campaign.plan.values()):
        for kernel in planned.kernels:
            module_of(kernel)
    for entry in [*campaign.compile, *campaign.space]:
        for kernel in entry.kernels:
            kernel_module(kernel)
        for target in entry.targets:
            target_named(target)
    return campaign


def write_campaign(campaign: Campaign) -> Path:
    """The campaign as a file for the jobs, with what `--config` changed; equal campaigns have one file."""
    text = yaml.safe_dump(campaign.model_dump(mode="json"), sort_keys=False)
    path = Path("build", "campaigns", f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def chosen_devices(campaign: Campaign) -> tuple[LocalDevice, ...]:
    """The devices of this machine that the campaign measures. Raises ConfigError for one that is not here."""
    here = local_devices()
    if campaign.devices == "auto":
        return tuple(device for device in here if device.platform != "cpu") or here
    for wanted in campaign.devices:
        if not any(wanted in (device.slug, device.device_class) for device in here):
            raise ConfigError(unknown_name("device of this machine", wanted, [device.slug for device in here]))
    return tuple(device for device in here if {device.slug, device.device_class} & set(campaign.devices))


def stamps(campaign: Campaign) -> list[str]:
    """The stamp of every measuring job on this machine, roofs first: a point must not be drawn without its roof."""
    devices = chosen_devices(campaign)
    jobs = [(device.slug, *job) for device in devices for job in campaign.jobs(device.device_class)]
    return [f"results/raw/{device.slug}/roofs.done" for device in devices] + [
        f"results/raw/{device}/{kernel}/{suite}.done" for device, kernel, suite in jobs
    ]


def job_digest(kernel: str, suite: str) -> str:
    """What can leave a measuring job something to do, beside the campaign: shapes, the kernel's code and configs."""
    files = [CONFIGS / "suites" / f"{suite}.yaml", *sorted(table.TUNED.glob(f"*/{kernel}.json"))]
    codes = [kernel_sha256(kernel), *(kernel_sha256(kernel, many) for many in load_suite(suite).manys)]
    return hashlib.sha256(b"".join([*map(str.encode, codes), *map(Path.read_bytes, files)])).hexdigest()


def compile_digest(kernel: str) -> str:
    """Sources that decide what a kernel's machine code is."""
    return sources_sha256(["narrowbench.measure.compiled", "narrowgemm.aot", kernel_module(kernel)])


def space_digest(kernel: str) -> str:
    """What can leave a search space something to compile, beside the campaign: shapes and the kernel's own code."""
    files = sorted((CONFIGS / "suites").glob("compiled*.yaml"))
    return hashlib.sha256(b"".join([kernel_sha256(kernel).encode(), *map(Path.read_bytes, files)])).hexdigest()


@cache
def report_digest(*modules: str) -> str:
    """Sources, device profiles, aims, claims, protocol and what is modelled: all that a report's modules read."""
    described = [CONFIGS / f"{name}.yaml" for name in ("aims", "claims", "estimates", "modelled", "protocol")]
    described += [CONFIGS / "suites" / "moe.yaml", *CONFIGS.glob("devices/*.yaml")]
    return sources_sha256([f"narrowbench.report.{module}" for module in modules], described)
