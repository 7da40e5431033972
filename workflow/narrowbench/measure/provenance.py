"""Where a row comes from: code, versions, device and command, with nothing in it that names a person or a machine."""

import hashlib
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from narrowbench.config import ROOT
from narrowbench.measure import nvidia
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.named import baseline_packages, kernel_sha256, modules_of, version_of
from narrowbench.sources import sources_sha256
from narrowbench.store.rows import Provenance
from narrowgemm.gemm.registry import Many

#: Packages whose versions are named in a row; the environment's digest covers all the others.
_NAMED = (
    "narrowgemm",
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "libtpu",
    "ml_dtypes",
    "numpy",
    "scipy",
    "nvidia-ml-py",
    *baseline_packages(),
)

#: Of a checkout, for `git status`.
_SOURCES = ("--untracked-files=no", "--", ".", ":!figures", ":!paper")


def provenance_of(
    device: LocalDevice, modules: Iterable[str], kernel: str | None = None, many: Many | None = None
) -> Provenance:
    """Provenance of a row that `modules` made on `device` now, of `kernel` where it is one's, doing `many` products."""
    commit, is_dirty = git_state(ROOT)
    return Provenance(
        device=device.slug,
        device_kind=device.kind,
        device_uuid_hash=device.uuid_hash,
        host_hash=nvidia.short_hash(platform.node()),
        git_commit=commit,
        git_dirty=is_dirty,
        sources_sha256=sources_sha256([*modules, *(modules_of(kernel, many) if kernel else [])]),
        kernel_sha256=kernel_sha256(kernel, many) if kernel else None,
        environment_sha256=environment_sha256(),
        versions=_versions(device),
        utc_time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        command=command_line(sys.argv),
    )


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit of a checkout and whether tracked files differ from it; None for both where it is no checkout.

    Figures and paper do not count: the pipeline itself writes them, and nothing measured depends on them.
    """
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit.strip(), bool((_git(root, "status", "--porcelain", *_SOURCES) or "").strip())


def command_line(arguments: Sequence[str]) -> str:
    """The command without the folders of its user: the program's name, and paths from the checkout or by their name."""
    program, *rest = arguments or ["python"]
    return " ".join([Path(program).name, *(_without_folders(argument) for argument in rest)])


@cache
def environment_sha256() -> str:
    """SHA-256 over the names and versions of all installed packages and of Python."""
    packages = {(d.metadata["Name"], d.version) for d in importlib.metadata.distributions()}
    listing = "\n".join(f"{name}=={version}" for name, version in sorted(packages, key=str))
    return hashlib.sha256(f"python {platform.python_version()}\n{listing}\n".encode()).hexdigest()


@cache
def _versions(device: LocalDevice) -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    versions |= {name: found for name in _NAMED if (found := version_of(name)) is not None}
    if device.platform == "cuda":
        versions |= nvidia.driver_versions()
    return versions


def _without_folders(argument: str) -> str:
    """An absolute path, alone or after `--option=`, from the checkout where it lies in it, else its last part."""

    def shortened(match: re.Match[str]) -> str:
        path = Path(match[2])
        return match[1] + (str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name)

    return re.sub(r"^(|[^/]*=)(~?/.*)$", shortened, argument)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
