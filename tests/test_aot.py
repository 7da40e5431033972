import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.problem import GemmProblem
from narrowgemm.targets import target_named

PROBLEM = GemmProblem(512, 512, 512, "bf16", "bf16")
KERNEL = "blackwell_tcgen05_bf16"


def test_an_unknown_target_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="unknown compile target 'b20'; did you mean b200"):
        aot.compile_many([aot.CompileCase(KERNEL, "b20", PROBLEM)])


def test_missing_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without_cuda(name: str, *rest: Any) -> Any:
        return None if name.startswith(("nvidia", "jax_cuda13_plugin")) else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without_cuda)
    with pytest.raises(UnsupportedError, match="install the extra `aot`") as caught:
        aot.compile_case(aot.CompileCase(KERNEL, "b200", PROBLEM))
    assert "bin/ptxas" in str(caught.value.values["missing"])


@pytest.mark.parametrize("reads_code", [True, False])
def test_the_disassembler_is_needed_to_read_code_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reads_code: bool
) -> None:
    packages = tmp_path / "cu13"
    for tool in ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc"):
        (packages / tool).parent.mkdir(parents=True, exist_ok=True)
        (packages / tool).touch()
    here = types.SimpleNamespace(submodule_search_locations=[str(packages)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: here)
    if reads_code:
        with pytest.raises(UnsupportedError, match="nvdisasm"):
            aot.environment_for(target_named("h200"))
    else:
        assert aot.environment_for(target_named("h200"), reads_code=False)["PATH"].startswith(f"{packages}/bin:")


def test_a_compiler_that_dies_costs_one_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = '{"status": "unsupported", "code": null, "reason": "a rule"}'
    dying = tmp_path / "python"
    dying.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{answer}'\necho 'no such pass' >&2\nkill -ABRT $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    outcomes = aot.compile_many([aot.CompileCase(KERNEL, "b200", PROBLEM)] * 3)
    assert [outcome.status for outcome in outcomes] == ["unsupported", "failed", "unsupported"]
    assert outcomes[1].reason == "the compiler died: no such pass"


def test_faults_are_told_apart() -> None:
    impossible = aot.CompileCase(KERNEL, "b200", PROBLEM, {"stages": 40})
    misspelt = aot.CompileCase(KERNEL, "b200", PROBLEM, {"stage": 4})
    elsewhere = aot.CompileCase(KERNEL, "h200", PROBLEM)
    unsupported, failed, wrong_gpu = aot.compile_many([impossible, misspelt, elsewhere])
    assert unsupported.status == "unsupported"
    assert "use fewer stages" in str(unsupported.reason)
    assert failed.status == "failed"
    assert "stage" in str(failed.reason)
    assert wrong_gpu.status == "unsupported"
    assert "h200" in str(wrong_gpu.reason)
