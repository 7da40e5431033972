"""The committed tables: each can be read, and its configs are admitted by the kernels as they are now."""

from narrowgemm.gemm.registry import kernel_named, kernel_names
from narrowgemm.tune import table


def test_every_tuned_config_is_one_that_its_kernel_admits() -> None:
    for path in sorted(table.TUNED.glob("*/*")):
        assert path.suffix == ".json"
        assert path.stem in kernel_names(), f"{path} is of no kernel"
        kernel = kernel_named(path.stem)
        for entry in table.entries(path.stem, path.parent.name):
            kernel.check(entry.problem, kernel.config_type(**entry.config))
