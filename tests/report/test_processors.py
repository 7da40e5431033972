"""What is written into the repository is the same on every processor, with wide vectors and without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowbench.models.statistics import significant

#: Names by which NumPy and OpenBLAS leave out instructions that not every processor has: AVX2, FMA and AVX-512.
PLAIN = {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL X86_V3", "OPENBLAS_CORETYPE": "Nehalem"}


def test_tables_do_not_depend_on_the_widths_of_vectors(tmp_path: Path) -> None:
    """Fitted, and means of many figures: where the last digits of a sum first show."""
    record = tmp_path / "record.parquet"
    for command in (
        ["collect", "--record", "results/record", "--out", str(record)],
        *(["table", "tab_modelled", "tab_summary", "--frame", str(record), "--out", str(tmp_path / name)]
          for name in ("wide", "plain")),
    ):  # fmt: skip
        environment = os.environ | (PLAIN if command[-1].endswith("plain") else {})
        subprocess.run([sys.executable, "-m", "narrowbench", *command], env=environment, check=True, timeout=300)
    names = sorted(path.name for path in (tmp_path / "wide").iterdir())
    assert "tab_modelled.csv" in names
    for name in names:
        assert (tmp_path / "wide" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [(1.23456789, 4, 1.235), (-6.54321e-9, 2, -6.5e-9), (0.0, 3, 0.0), (float("inf"), 3, float("inf"))],
)
def test_significant_digits(value: float, digits: int, expected: float) -> None:
    assert significant(value, digits) == expected
