import pytest

from narrowgemm.slug import slugged


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Xeon(R) Platinum 8480+", "intel-xeon-platinum-8480-plus"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("cpu", "cpu"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", "13th-gen-intel-core-i7-1360p"),
    ],
)
def test_slugs_are_safe_folder_names(name: str, slug: str) -> None:
    assert slugged(name) == slug
