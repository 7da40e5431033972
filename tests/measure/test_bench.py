"""What is set before JAX finds its devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowbench.measure.bench import keep_autotuning


def test_autotuning_is_kept_beside_other_flags_and_a_folder_that_is_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    keep_autotuning(tmp_path / "mine")
    own = f"--xla_cpu_enable_fast_math=false --xla_gpu_per_fusion_autotune_cache_dir={tmp_path / 'mine'}"
    assert os.environ["XLA_FLAGS"] == own
    keep_autotuning(tmp_path / "other")
    assert os.environ["XLA_FLAGS"] == own
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_xla_knows_the_flag(tmp_path: Path) -> None:
    """XLA ends a process that gives it a flag it does not know."""
    program = (
        "from pathlib import Path; from narrowbench.measure.bench import keep_autotuning; import jax;"
        f"keep_autotuning(Path({str(tmp_path)!r})); print(float(jax.jit(lambda x: x + 1)(1.0)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "2.0\n", done.stderr
