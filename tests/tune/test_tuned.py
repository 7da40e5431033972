"""The committed tables: each can be read, its configs are admitted by the kernels, and compile without spills."""

from collections.abc import Iterator

import pytest

from narrowgemm.aot import CompileCase, compile_many
from narrowgemm.gemm.registry import kernel_named, kernel_names
from narrowgemm.slug import slugged
from narrowgemm.targets import TARGETS, GpuTarget
from narrowgemm.tune import table

TABLES = [(path.stem, path.parent.name) for path in sorted(table.TUNED.glob("*/*.json"))]


def _distinct(kernel: str, device: str) -> Iterator[table.Entry]:
    """An entry of each config and formats: what a shape adds is the same for all of them, or a constant."""
    seen = set()
    for entry in table.entries(kernel, device):
        p = entry.problem
        key = (*sorted(entry.config.items()), p.a_format, p.b_format, p.out_format)
        if key not in seen:
            seen.add(key)
            yield entry


def test_every_tuned_config_is_one_that_its_kernel_admits() -> None:
    assert sorted(table.TUNED.glob("*/*")) == [table.path_of(*of) for of in TABLES]
    for name, device in TABLES:
        assert name in kernel_names(), f"the table {name} of {device} is of no kernel"
        kernel = kernel_named(name)
        for entry in table.entries(name, device):
            kernel.check(entry.problem, kernel.config_type(**entry.config))


@pytest.mark.parametrize(("name", "device"), TABLES)
def test_every_tuned_config_compiles_to_tensor_instructions_without_spills(name: str, device: str) -> None:
    targets = {slugged(target.kind): target.name for target in TARGETS.values() if isinstance(target, GpuTarget)}
    cases = [CompileCase(name, targets[device], entry.problem, entry.config) for entry in _distinct(name, device)]
    for case, outcome in zip(cases, compile_many(cases), strict=True):
        assert outcome.code is not None, f"{case}: {outcome.reason}"
        assert outcome.code.spill_bytes == 0, case
        # A stage is four steps of 32 of K, for each 64 rows that a warpgroup computes.
        assert outcome.code.count("QGMMA") >= 4, case
        assert outcome.code.count("QGMMA") % 4 == 0, case
