"""What the compilers made of Pallas kernels, read from the files that they dump. No JAX."""

import importlib.metadata
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrowgemm.errors import UnsupportedError


@dataclass(frozen=True)
class MachineCode:
    """What was compiled, all Pallas kernels of a case together; null is what a TPU does not have or tell.

    architecture:   such as sm_100a, or the TPU.
    registers:      of a thread, the largest of the kernels.
    spill_bytes:    stores and loads of spilled registers: as ptxas counts them, or 4096 a TPU's vector register.
    shared_memory_bytes: of a block, as launched; the largest.
    tensor_memory_columns: of the 512 of an SM; the largest.
    threads:        of a block; the largest.
    code_bytes:     of all kernels.
    instructions:   mnemonic with its modifiers -> count. GPU: SASS of tensor cores, TMA, tensor memory, local memory
                    and stores into another block. TPU: of matrix units, without the unit's number, and DMA.
    instruction_count: SASS instructions of all kinds; a TPU's bundles.
    compile_s:      tracing, lowering and assembling.
    versions:       of ptxas or libtpu, jax and jaxlib.
    """

    target: str
    architecture: str
    config: dict[str, Any]
    registers: int | None
    spill_bytes: int
    shared_memory_bytes: int | None
    tensor_memory_columns: int | None
    threads: int | None
    code_bytes: int | None
    instructions: dict[str, int]
    instruction_count: int
    compile_s: float
    versions: dict[str, str]

    def count(self, mnemonic: str) -> int:
        """Instructions whose mnemonic is, or whose modifiers follow, `mnemonic`: UTCQMMA counts UTCQMMA.2CTA too."""
        return sum(n for name, n in self.instructions.items() if name == mnemonic or name.startswith(f"{mnemonic}."))


#: Files of a GPU's dump: what Mosaic GPU prints while it lowers, and while it assembles.
LOWERED, ASSEMBLED = "lowered.txt", "assembled.txt"

#: Mnemonics that are counted: tensor cores, TMA, tensor memory, local memory (spills), a cluster's shared memory, and
#: what begins and waits for wgmma: ptxas adds such waits where it cannot keep several in flight.
_COUNTED = re.compile(r"[HQI]G?MMA|UTC\w+|UTMA\w+|LDTM|STTM|LDL|STL|STAS|WARPGROUP")
#: Those of Hopper's and Blackwell's tensor-core instructions (HGMMA, QGMMA, IGMMA; UTCHMMA, UTCQMMA, UTCOMMA).
MULTIPLY = re.compile(r"(HGMMA|QGMMA|IGMMA|UTC[A-Z]MMA)")
_SASS_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_TPU_COUNTED = re.compile(r"\b(vmatmul[\w.]*|vmatpush[\w.]*|dma\.\w+_to_\w+)")
_TPU_BUNDLE = re.compile(r"^ *0x[0-9a-f]+ ", re.MULTILINE)
_TPU_SPILL = re.compile(r"= v(?:st|ld) \[vmem:\[#allocation\d+_spill\]")
#: Of v5e to v7: 8 sublanes × 128 lanes × 32 bits.
_VECTOR_REGISTER_BYTES = 4096
_SASS_HEADER = re.compile(r"^\s*\.target\s+sm_", re.MULTILINE)
_PTXAS_ENTRY = re.compile(
    r"for '(?P<architecture>\w+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def read_gpu_dump(dump: Path, kernel: str, target: str, config: dict[str, Any], compile_s: float) -> MachineCode:
    """The machine code's figures, from the files `LOWERED` and `ASSEMBLED` in `dump`.

    They hold, of each Pallas kernel, its modules and resources, and what ptxas says and nvdisasm shows of it.
    Raises UnsupportedError where no machine code is there, or not all of it.
    """
    lowered, assembled = ((dump / name).read_text() for name in (LOWERED, ASSEMBLED))
    columns = [_tensor_memory_columns(line) for line in re.findall(r"^Resources\(.*", lowered, re.MULTILINE)]
    entries = list(_PTXAS_ENTRY.finditer(assembled))
    code = [_SASS_LINE.findall(part) for part in _SASS_HEADER.split(assembled)[1:]]
    if not entries or len(entries) != len(code):
        raise _no_code(kernel, target)
    launches = [_launch(part) for part in re.split(r"^module\b", lowered, flags=re.MULTILINE)[1:]]
    mnemonics = Counter(mnemonic for kernel in code for _, mnemonic in kernel)
    return MachineCode(
        target=target,
        architecture=entries[0]["architecture"],
        config=config,
        registers=max(int(entry["registers"]) for entry in entries),
        spill_bytes=sum(int(entry["stores"]) + int(entry["loads"]) for entry in entries),
        shared_memory_bytes=max(shared for shared, _ in launches),
        tensor_memory_columns=max(columns),
        threads=max(threads for _, threads in launches),
        code_bytes=sum(int(kernel[-1][0], 16) + 16 for kernel in code),
        instructions={name: n for name, n in sorted(mnemonics.items()) if _COUNTED.fullmatch(name.split(".")[0])},
        instruction_count=mnemonics.total(),
        compile_s=compile_s,
        versions={"ptxas": ptxas_version()} | _jax_versions(),
    )


def read_tpu_dump(dump: Path, kernel: str, target: str, config: dict[str, Any], compile_s: float) -> MachineCode:
    """The machine code's figures, from the final bundles that libtpu leaves of each Pallas kernel in `dump`.

    Raises UnsupportedError where no machine code is there.
    """
    bundles = "\n".join(path.read_text() for path in dump.glob(f"*{kernel}*-final_bundles.txt"))
    count = len(_TPU_BUNDLE.findall(bundles))
    if not count:
        raise _no_code(kernel, target)
    mnemonics = Counter(re.sub(r"\.mxu\d", "", mnemonic) for mnemonic in _TPU_COUNTED.findall(bundles))
    return MachineCode(
        target=target,
        architecture=target,
        config=config,
        registers=None,
        spill_bytes=_VECTOR_REGISTER_BYTES * len(_TPU_SPILL.findall(bundles)),
        shared_memory_bytes=None,
        tensor_memory_columns=None,
        threads=None,
        code_bytes=None,
        instructions=dict(sorted(mnemonics.items())),
        instruction_count=count,
        compile_s=compile_s,
        versions={"libtpu": importlib.metadata.version("libtpu")} | _jax_versions(),
    )


def _no_code(kernel: str, target: str) -> UnsupportedError:
    rule = "produced no machine code of its own"
    return UnsupportedError(kernel, {"target": target}, rule, "compile a Pallas kernel")


def _launch(module: str) -> tuple[int, int]:
    """Bytes of dynamic shared memory and number of threads of a block, from the launch in a Mosaic GPU module."""
    constants = dict(re.findall(r"%(\w+) = arith\.constant (\d+) : (?:i32|index)", module))
    launch = re.search(r"gpu\.launch.*?threads\([^)]*\) in \(([^)]*)\) dynamic_shared_memory_size %(\w+)", module)
    assert launch is not None, "a Mosaic GPU module without a launch"
    threads = 1
    for name in re.findall(r"= %(\w+)", launch[1]):
        threads *= int(constants[name])
    return int(constants[launch[2]]), threads


def _tensor_memory_columns(resources: str) -> int:
    return sum(int(columns) for columns in re.findall(r"tmem_\w*scratch_cols=(\d+)", resources))


def ptxas_version() -> str:
    """Version of the ptxas that is first on PATH."""
    banner = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V(\d+\.\d+\.\d+)", banner)
    assert version is not None, f"no version in {banner!r}"
    return version[1]


def _jax_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
