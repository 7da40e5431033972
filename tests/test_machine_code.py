from pathlib import Path

import pytest

from narrowgemm import machine_code
from narrowgemm.errors import UnsupportedError

RESOURCES = (
    "Resources(smem_scratch_bytes=1, tmem_scratch_cols=8, tmem_collective_scratch_cols=256, barrier_counts={})\n"
)


def _module(threads: int, shared: int) -> str:
    return (
        "module attributes {a} {\n"
        f"%c1 = arith.constant {threads} : index\n%c0 = arith.constant 1 : index\n"
        f"%c7_i32 = arith.constant {shared} : i32\n"
        "%3 = gpu.launch async [%1] blocks(%a, %b, %c) in (%d = %c9, %e = %c0, %f = %c0) threads(%g, %h, %i) in "
        "(%j = %c1, %k = %c0, %l = %c0) dynamic_shared_memory_size %c7_i32 {\n"
    )


def _assembled(registers: int, *instructions: str) -> str:
    lines = (f"  -:-:-:Y:01  /*{16 * i:04x}*/    {line} \n" for i, line in enumerate(instructions))
    return (
        "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k_kernel' for 'sm_90a'\n"
        "    0 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 16 barriers\n\n\t.target\tsm_90a\n\n{''.join(lines)}"
    )


LOAD, MULTIPLY = "LDC R1, c[0x0][0x37c]", "@!P0 QGMMA.64x256x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24"


def _read(folder: Path, lowered: str, assembled: str) -> machine_code.MachineCode:
    (folder / machine_code.LOWERED).write_text(lowered)
    (folder / machine_code.ASSEMBLED).write_text(assembled)
    return machine_code.read_gpu_dump(folder, "a_kernel", "h200", {"stages": 4}, 1.5)


def test_resources_are_read_from_what_the_compiler_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "ptxas_version", lambda: "1")
    assembled = _assembled(168, LOAD, MULTIPLY, "@!UP0 UTMALDG.2D [UR8], [UR4]")
    code = _read(tmp_path, _module(384, 70000) + RESOURCES, assembled)
    assert (code.architecture, code.registers, code.spill_bytes) == ("sm_90a", 168, 32)
    assert (code.shared_memory_bytes, code.threads, code.tensor_memory_columns) == (70000, 384, 264)
    assert (code.code_bytes, code.instruction_count) == (48, 3)
    assert code.instructions == {"QGMMA.64x256x32.F32.E4M3.E4M3": 1, "UTMALDG.2D": 1}
    assert (code.count("QGMMA"), code.count("QGMM")) == (1, 0)


def test_of_several_kernels_the_most_is_read_or_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of constants mean something in their own module alone."""
    monkeypatch.setattr(machine_code, "ptxas_version", lambda: "1")
    lowered = _module(384, 70000) + RESOURCES + _module(128, 90000) + RESOURCES.replace("=8,", "=16,")
    code = _read(tmp_path, lowered, _assembled(168, MULTIPLY) + _assembled(80, MULTIPLY, LOAD))
    assert (code.registers, code.spill_bytes) == (168, 64)
    assert (code.shared_memory_bytes, code.threads, code.tensor_memory_columns) == (90000, 384, 272)
    assert (code.code_bytes, code.instruction_count, code.count("QGMMA")) == (48, 3, 2)


@pytest.mark.parametrize(
    ("lowered", "assembled"),
    [
        ("", ""),
        (_module(384, 70000) + RESOURCES, ""),
        (_module(384, 70000) + RESOURCES, _assembled(168, LOAD).split("\t.target")[0]),
    ],
)
def test_a_compilation_without_machine_code_of_its_own_is_unsupported(
    lowered: str, assembled: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="produced no machine code of its own"):
        _read(tmp_path, lowered, assembled)


def test_a_tpus_bundles_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code.importlib.metadata, "version", lambda name: f"{name} 1")
    (tmp_path / "17-tpu_mxu_bf16.1-72-final_bundles.txt").write_text(
        "     0   :  { %s1 = inlined_call_operand.hbm [shape: bf16[4096,4096]] }\n"
        "   0x1   :  { %5 = vst [vmem:[#allocation7_spill] sm:$0xff] %v4  ;;  %6 = dma.hbm_to_vmem [thread:$0] %s1 }\n"
        " 0x1a2   :  { %7 = vmatmul.mubr.bf16.gmra.mxu0 %v1  ;;  %8 = vmatmul.mubr.bf16.gmra.mxu1 %v2 }\n"
        " 0x1a3   :  { %9 = vld [vmem:[#allocation7_spill] sm:$0xff]  ;;  %10 = vld [vmem:[#allocation3] sm:$0xff] }\n"
    )
    (tmp_path / "17-tpu_mxu_bf16.1-71-schedule-analysis_final_bundles.txt").write_text("0x1 : vmatmul.none\n")
    code = machine_code.read_tpu_dump(tmp_path, "tpu_mxu_bf16", "tpu_v6e", {}, 1.5)
    assert code.instructions == {"dma.hbm_to_vmem": 1, "vmatmul.mubr.bf16.gmra": 2}
    assert (code.instruction_count, code.spill_bytes, code.registers) == (3, 8192, None)
    assert code.versions["libtpu"] == "libtpu 1"
