"""What must not be loaded, in fresh processes: import-linter reads imports, these run them."""

import subprocess
import sys

import pytest

from narrowbench.config import ROOT


def _modules(package: str) -> list[str]:
    folder = ROOT / "workflow" / "narrowbench" / package
    return [f"narrowbench.{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("package", ["report", "models", "store"])
def test_the_report_side_loads_no_jax(package):
    """A laptop rebuilds the paper without JAX."""
    modules = _modules(package)
    assert modules
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules}];"
        "print(*[name for name in sys.modules if name.partition('.')[0] in ('jax', 'jaxlib')"
        " or name.startswith(('narrowgemm.gemm', 'narrowgemm.tune'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("arguments", [["--help"], ["measure", "--help"], ["figure", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    code = (
        f"import sys; sys.argv[1:] = {arguments}\n"
        "from narrowbench.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'jax', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
