"""What the project says in more than one place, it says alike."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from narrowbench.config import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {"requirements.lock": ("aot", "dev"), "requirements-cuda13.lock": ("aot", "dev", "cuda13")}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned(requirements: list[str]) -> dict[str, str]:
    """Name -> version of exact pins; extras in brackets and markers are left out."""
    form = r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)(?:; .*)?"
    pins = [re.fullmatch(form, requirement) for requirement in requirements]
    assert all(pins), f"not an exact pin among {requirements}"
    return {_normal(pin[1]): pin[2] for pin in pins if pin}


def _locked(name: str) -> dict[str, str]:
    return {_normal(n): v for n, v in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", (ROOT / name).read_text(), re.M)}


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_holds_every_pin_of_pyproject(lock):
    wanted = _pinned(PROJECT["project"]["dependencies"])
    for extra in LOCKS[lock]:
        wanted |= _pinned(PROJECT["project"]["optional-dependencies"][extra])
    wanted |= _pinned(PROJECT["build-system"]["requires"])
    locked = _locked(lock)
    assert {name: locked.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("lock", [*LOCKS, ".ci/citation.lock"])
def test_the_lock_hashes_everything_and_names_no_host(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    requirements = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    assert requirements
    assert all("--hash=sha256:" in requirement for requirement in requirements)


def test_the_two_locks_agree_on_what_both_hold():
    plain, cuda = (_locked(lock) for lock in LOCKS)
    assert plain.items() <= cuda.items()


def test_the_lock_asks_for_what_is_made_for_linux_on_linux_alone():
    lock = (ROOT / "requirements.lock").read_text()
    requirements = re.findall(r"^(?:jax-cuda|nvidia-(?!ml-py))\S+ ?(.*)\\$", lock, re.M)
    assert requirements
    assert all("sys_platform == 'linux'" in marker for marker in requirements)


def test_a_script_beside_the_clone_imports_the_library_and_not_the_clones_folder(tmp_path):
    build = "from hatchling.build import build_editable; import sys; print(build_editable(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    with zipfile.ZipFile(tmp_path / made.stdout.split()[-1]) as wheel:
        wheel.extractall(tmp_path / "site")
    beside = tmp_path / "beside"
    (beside / "narrowgemm").mkdir(parents=True)
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import narrowgemm, narrowbench; narrowgemm.quantize"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=beside, env=environment, check=True, timeout=120)


def test_conda_takes_the_same_python_and_the_same_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, nested = environment["dependencies"]
    wanted = (ROOT / ".python-version").read_text().strip()
    assert python == f"python={wanted}"
    assert PROJECT["project"]["requires-python"] == f">={wanted}"
    assert pip == "pip"
    assert nested == {"pip": ["--require-hashes", "-r requirements.lock"]}


def test_the_version_is_the_same_everywhere():
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_gives_the_commands_that_continuous_integration_runs():
    readme = (ROOT / "README.md").read_text()
    assert "\nmake run\n" in readme
    assert "\nmake test\n" in readme


def test_workflow_and_hooks_run_the_one_script():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "bash .ci/run" in steps
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]] == ["bash .ci/run lint"]


@pytest.mark.parametrize("version", [None, "3.11.9"], ids=["none", "too old"])
def test_a_missing_or_too_old_python_gets_one_clear_sentence(tmp_path, version):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "make"):
        found = next(path for folder in os.get_exec_path() if (path := Path(folder, tool)).exists())
        (tools / tool).symlink_to(found)
    if version:
        old = tools / "python3"
        old.write_text("#!/bin/sh\nexit 1\n")  # what the check of the version comes to
        old.chmod(0o755)
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "test", "VENV=absent"],
        cwd=ROOT, env={"PATH": str(tools)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert first.startswith("narrowgemm needs Python 3.12 or newer")
    assert not (ROOT / "absent").exists()


@pytest.mark.parametrize(
    ("page", "check"),
    [
        ("README.md", "assert c.shape == (256, 384) and c.dtype == 'bfloat16', (c.shape, c.dtype)"),
        ("docs/products.md", "assert batch.shape == (3, 64, 128) and of_experts.shape == (192, 128), of_experts.shape"),
    ],
)
def test_the_example_of_a_page_runs(page, check):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    subprocess.run([sys.executable, "-W", "error", "-c", example + check], check=True, timeout=120)


_PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "kernels/README.md"])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```", re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_pages_links_lead_somewhere(page):
    lost = []
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert not lost, lost
