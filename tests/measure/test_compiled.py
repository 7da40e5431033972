import pytest

from narrowbench.config import Campaign, parse
from narrowbench.measure import compiled
from narrowbench.store import jsonl
from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.machine_code import MachineCode

KERNEL = "blackwell_tcgen05_bf16"


@pytest.fixture
def campaign() -> Campaign:
    entry = {"kernels": [KERNEL], "suites": ["compiled"], "targets": ["b200", "h200", "b300"]}
    return parse(Campaign, {"title": "t", "plan": {}, "compile": [entry], "roof_modes": ["burst"]}, "test")


def _code(case: aot.CompileCase) -> MachineCode:
    resources = {"registers": 64, "spill_bytes": 0, "shared_memory_bytes": 1024, "tensor_memory_columns": 512}
    counts = {"threads": 192, "code_bytes": 4096, "instructions": {"UTCHMMA": 4}, "instruction_count": 100}
    return MachineCode(
        case.target, "sm_100a", dict(case.config or {}), **resources, **counts, compile_s=1.0, versions={"ptxas": "13"}
    )


def test_a_row_a_target_and_number_of_blocks(campaign, tmp_path, monkeypatch):
    """Targets of another architecture are not the kernel's; each number of cooperating blocks has its best guess."""
    monkeypatch.setattr(
        aot, "compile_each", lambda cases: (aot.Outcome(case, "ok", _code(case), None) for case in cases)
    )
    out = tmp_path / "rows.jsonl"
    assert compiled.run_compile(KERNEL, campaign, out) == {"ok": 4}
    rows = jsonl.read([out])
    assert [(row.provenance.device, row.config["ctas"]) for row in rows] in (
        [("nvidia-b200", 2), ("nvidia-b200", 1), ("nvidia-b300", 2), ("nvidia-b300", 1)],
        [("nvidia-b200", 1), ("nvidia-b200", 2), ("nvidia-b300", 1), ("nvidia-b300", 2)],
    )
    assert {row.evidence for row in rows} == {"compiled"}
    assert len({row.key for row in rows}) == 4
    assert rows[0].compile.target == "sm_100a"
    assert rows[0].provenance.versions["ptxas"] == "13"
    assert rows[0].timing is None


def test_without_the_packages_every_case_says_so(campaign, tmp_path, monkeypatch):
    def refuse(_cases):
        raise UnsupportedError("aot", {"missing": ["bin/ptxas"]}, "are needed", "install the extra `aot`")
        yield

    monkeypatch.setattr(aot, "compile_each", refuse)
    out = tmp_path / "rows.jsonl"
    assert compiled.run_compile(KERNEL, campaign, out) == {"unsupported": 4}
    assert all("install the extra `aot`" in row.reason for row in jsonl.read([out]))
