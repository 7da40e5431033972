"""The Blackwell kernels compiled to machine code for chips that are not here."""

import pytest

from narrowgemm.aot import CompileCase, MachineCode, compile_many
from narrowgemm.problem import GemmProblem

PAIR = {"tile_n": 256, "stages": 5, "ctas": 2}
SINGLE = {"tile_n": 128, "stages": 4, "ctas": 1, "schedule": "static"}
#: test id -> kernel, target, formats of A and B, config, the tensor-core instruction it must have.
CASES: dict[str, tuple[str, str, str, str, dict[str, object], str]] = {
    "bf16": ("bf16", "b200", "bf16", "bf16", PAIR, "UTCHMMA.2CTA"),
    "fp8": ("fp8", "gb200", "fp8_e4m3", "fp8_e4m3", PAIR, "UTCQMMA.2CTA"),
    "fp8 mixed": ("fp8", "b200", "fp8_e4m3", "fp8_e5m2", SINGLE, "UTCQMMA"),
    "mxfp8": ("mxfp8", "b200", "mxfp8_e4m3", "mxfp8_e5m2", PAIR, "UTCQMMA.2CTA"),
    "mxfp6": ("mxfp6", "b200", "mxfp6_e2m3", "mxfp8_e4m3", SINGLE, "UTCQMMA"),
    "mxfp6 transposed": ("mxfp6", "b300", "mxfp8_e5m2", "mxfp6_e3m2", PAIR | {"stages": 4}, "UTCQMMA.2CTA"),
    "mxfp4": ("mxfp4", "b200", "mxfp4", "mxfp4", SINGLE, "UTCOMMA"),
    "mxfp8 quantised": ("mxfp8", "b200", "mxfp8_e4m3", "mxfp8_e4m3", SINGLE, "UTCQMMA"),
    "nvfp4 quantised": ("nvfp4", "b300", "nvfp4", "nvfp4", PAIR | {"stages": 4}, "UTCOMMA.2CTA"),
    "nvfp4": ("nvfp4", "b300", "nvfp4", "nvfp4", PAIR, "UTCOMMA.2CTA"),
}


@pytest.fixture(scope="module")
def codes() -> dict[str, MachineCode]:
    """Machine code of every case; M, N and K are no multiples of a tile."""
    quantising = {"mxfp8 quantised": "mxfp8_e4m3", "nvfp4 quantised": "nvfp4"}
    cases = {
        name: CompileCase(
            f"blackwell_tcgen05_{kernel}", target, GemmProblem(1000, 1056, 1088, a, b), config, quantising.get(name)
        )
        for name, (kernel, target, a, b, config, _) in sorted(CASES.items(), key=lambda item: item[1][1])
    }
    outcomes = dict(zip(cases, compile_many(list(cases.values())), strict=True))
    assert {name: outcome.reason for name, outcome in outcomes.items() if outcome.reason} == {}
    return {name: outcome.code for name, outcome in outcomes.items() if outcome.code}


@pytest.mark.parametrize("name", CASES)
def test_machine_code_has_the_instructions_and_no_spills(codes: dict[str, MachineCode], name: str) -> None:
    kernel, target, _, _, config, instruction = CASES[name]
    code = codes[name]
    assert code.architecture == {"b300": "sm_103a"}.get(target, "sm_100a")
    assert code.count(instruction) > 0
    assert code.count("UTMALDG") > 0
    assert code.count("UTMASTG") > 0
    assert code.count("UTCCP") > 0 or kernel in ("bf16", "fp8")
    assert code.count("STTM") > 0 or kernel != "mxfp6"
    assert code.spill_bytes == 0
    assert code.count("LDL") == code.count("STL") == 0
    assert code.shared_memory_bytes <= 227 * 1024
    assert 0 < code.tensor_memory_columns <= 512
    assert code.registers <= 255
    assert config.items() <= code.config.items()
