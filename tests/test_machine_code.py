from pathlib import Path

import pytest

from narrowgemm import machine_code
from narrowgemm.errors import UnsupportedError


def test_resources_are_read_from_what_the_compiler_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "ptxas_version", lambda: "1")
    (tmp_path / "x.ptxas").write_text(
        "ptxas info    : Compiling entry function 'k_kernel' for 'sm_90a'\n"
        "    0 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 16 barriers\n"
    )
    (tmp_path / "x.before_layout_inference.txt").write_text(
        "%c384 = arith.constant 384 : index\n%c1 = arith.constant 1 : index\n%c70000_i32 = arith.constant 70000 : i32\n"
        "%3 = gpu.launch async [%1] blocks(%a, %b, %c) in (%d = %c9, %e = %c1, %f = %c1) threads(%g, %h, %i) in "
        "(%j = %c384, %k = %c1, %l = %c1) dynamic_shared_memory_size %c70000_i32 {\n"
    )
    (tmp_path / "x.resources.txt").write_text(
        "Resources(smem_scratch_bytes=1, tmem_scratch_cols=8, tmem_collective_scratch_cols=256, barrier_counts={})"
    )
    (tmp_path / "x.sass_ctrl").write_text(
        "   -:-:-:Y:01        /*0000*/                   LDC R1, c[0x0][0x37c] \n"
        "   -:-:-:Y:01        /*0010*/              @!P0 QGMMA.64x256x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24 \n"
        "   -:-:-:Y:01        /*0020*/             @!UP0 UTMALDG.2D [UR8], [UR4] \n"
    )
    code = machine_code.read_gpu_dump(tmp_path, "a_kernel", "h200", {"stages": 4}, 1.5)
    assert (code.architecture, code.registers, code.spill_bytes) == ("sm_90a", 168, 32)
    assert (code.shared_memory_bytes, code.threads, code.tensor_memory_columns) == (70000, 384, 264)
    assert (code.code_bytes, code.instruction_count) == (48, 3)
    assert code.instructions == {"QGMMA.64x256x32.F32.E4M3.E4M3": 1, "UTMALDG.2D": 1}
    assert (code.count("QGMMA"), code.count("QGMM")) == (1, 0)


def test_a_compilation_without_machine_code_of_its_own_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="produced no machine code of its own"):
        machine_code.read_gpu_dump(tmp_path, "xla_dot_bf16", "h200", {}, 1.5)


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
