"""Compile kernels for a GPU that is not there, and read what came out: resources and instructions of the machine code.

Every kernel is compiled in a child process, because JAX reads its environment once, when it is imported, and because a
compiler that meets what it cannot do may abort: an abort then costs its case alone. The parent never imports JAX.

Needs the extra `aot`: the CUDA plugin of JAX, ptxas, nvdisasm and libdevice, and no GPU.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from narrowgemm.errors import UnsupportedError, unknown_name
from narrowgemm.formats.spec import format_named
from narrowgemm.machine_code import MachineCode, read_dump
from narrowgemm.problem import GemmProblem


@dataclass(frozen=True)
class Target:
    """What the compiler is told of a GPU. None of it is a figure of performance; `configs/devices` has those.

    arch:          which kernels run on it, as in `Kernel.arch`.
    capability:    compute capability; code is made for its architecture-specific variant, `sm_100a` for (10, 0).
    cores:         streaming multiprocessors.
    l2_bytes, memory_bytes, bandwidth_bytes_s, clock_hz: as XLA's cost model wants them.
    """

    name: str
    kind: str
    arch: str
    capability: tuple[int, int]
    cores: int
    l2_bytes: int
    memory_bytes: int
    bandwidth_bytes_s: float
    clock_hz: float


#: Source: the target specifications that OpenXLA keeps beside its GPU back end (b200, gb200, b300, h100_sxm, h200), but
#: 148 cores for B300, which devices report and OpenXLA gives as 158.
TARGETS = {
    target.name: target
    for target in (
        Target("b200", "NVIDIA B200", "blackwell", (10, 0), 148, 132_644_864, 191_514_411_008, 7.67232e12, 1.965e9),
        Target("gb200", "NVIDIA GB200", "blackwell", (10, 0), 152, 135_528_448, 197_897_748_480, 7.928064e12, 2.062e9),
        Target("b300", "NVIDIA B300", "blackwell", (10, 3), 148, 135_528_448, 297_021_865_984, 7.936e12, 1.965e9),
        Target("h100", "NVIDIA H100 80GB HBM3", "hopper", (9, 0), 132, 52_428_800, 84_942_979_072, 3.35232e12, 1.98e9),
        Target("h200", "NVIDIA H200", "hopper", (9, 0), 132, 52_428_800, 151_397_597_184, 4.8e12, 1.98e9),
    )
}


@dataclass(frozen=True)
class CompileCase:
    """A kernel to be compiled for a target. `config` has the fields of the kernel's `Config`; None: first candidate."""

    kernel: str
    target: str
    problem: GemmProblem
    config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `ok` has its code, `unsupported` and `failed` have a reason."""

    case: CompileCase
    status: Literal["ok", "unsupported", "failed"]
    code: MachineCode | None
    reason: str | None


def target_named(name: str) -> Target:
    """The target called `name`. Raises ValueError, naming the nearest known ones, for any other."""
    if name not in TARGETS:
        raise ValueError(unknown_name("compile target", name, TARGETS))
    return TARGETS[name]


def compile_case(case: CompileCase) -> MachineCode:
    """Machine code of one case. Raises UnsupportedError where it is expected not to compile, RuntimeError where not."""
    (outcome,) = compile_many([case])
    if outcome.code is not None:
        return outcome.code
    if outcome.status == "unsupported":
        raise UnsupportedError(
            case.kernel, {"target": case.target}, f"cannot be compiled: {outcome.reason}", "see the rule"
        )
    raise RuntimeError(f"{case.kernel} for {case.target} failed to compile: {outcome.reason}")


def compile_many(cases: Sequence[CompileCase]) -> list[Outcome]:
    """Outcome of each case, in order. Raises UnsupportedError without the packages, ValueError for a bad target."""
    return list(compile_each(cases))


def compile_each(cases: Sequence[CompileCase]) -> Iterator[Outcome]:
    """As `compile_many`, but each outcome as soon as it is there.

    A process serves one target, because JAX keeps what it lowered for the first one it saw: sort the cases by target.
    """
    for case in cases:
        target_named(case.target)
    environment = _environment()
    for _, group in itertools.groupby(cases, key=lambda case: case.target):
        waiting = list(group)
        while waiting:
            with _Child(waiting, environment) as child:
                for outcome in child:
                    waiting = waiting[1:]
                    yield outcome
                if waiting:
                    yield Outcome(waiting[0], "failed", None, f"the compiler died: {child.last_words()}")
                    waiting = waiting[1:]


def _environment() -> dict[str, str]:
    """Environment of a compiling process. The first ptxas on PATH is the one that runs: the packaged one goes first."""
    nvidia = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    roots = [Path(place) for place in (nvidia.submodule_search_locations or ())] if nvidia else []
    wanted = ("bin/ptxas", "bin/nvdisasm", "nvvm/libdevice/libdevice.10.bc")
    missing = [name for name in wanted if not any((root / name).exists() for root in roots)]
    missing += [name for name in ("jax_cuda13_plugin", "jax_plugins") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "aot",
            {"missing": missing},
            "are needed to compile for an absent GPU",
            "install the extra `aot` (narrowgemm[aot])",
        )
    return os.environ | {
        "PATH": os.pathsep.join([str(roots[0] / "bin"), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "MOSAIC_GPU_DUMP_SASS": "1",
    }


class _Child:
    """A process that compiles cases of one target, a line of JSON back for each; iterating yields the outcomes."""

    def __init__(self, cases: Sequence[CompileCase], environment: dict[str, str]) -> None:
        self._cases = cases
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed on exit)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "narrowgemm.aot"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __iter__(self) -> Iterator[Outcome]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps([asdict(case) for case in self._cases]))
            stdin.close()
        for case, line in zip(self._cases, stdout, strict=False):
            answer = json.loads(line)
            code = None if answer["code"] is None else MachineCode(**answer["code"])
            yield Outcome(case, answer["status"], code, answer["reason"])
        self._process.wait()

    def last_words(self) -> str:
        """The end of what the process wrote to its error stream."""
        self._errors.seek(0)
        return " | ".join(self._errors.read().strip().splitlines()[-3:])


def main() -> None:
    """The child: cases as JSON on standard input, a line of JSON each on standard output, everything else to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for fields in json.load(sys.stdin):
        case = CompileCase(**(fields | {"problem": GemmProblem(**fields["problem"])}))
        answers.write(json.dumps(_answer(case)) + "\n")
        answers.flush()


def _answer(case: CompileCase) -> dict[str, Any]:
    try:
        return {"status": "ok", "code": asdict(_compile(case)), "reason": None}
    except UnsupportedError as error:
        return {"status": "unsupported", "code": None, "reason": str(error)}
    except Exception as error:  # any fault of a compiler is a result of its case, not the end of the others
        return {"status": "failed", "code": None, "reason": f"{type(error).__name__}: {error}"}


def _compile(case: CompileCase) -> MachineCode:
    import jax

    from narrowgemm.gemm.registry import check_formats, kernel_named

    target = target_named(case.target)
    kernel = kernel_named(case.kernel)
    if kernel.arch != target.arch:
        raise UnsupportedError(
            kernel.name,
            {"target": target.name},
            f"is {target.arch}, not {kernel.arch}",
            "choose another target or kernel",
        )
    config = kernel.candidates(case.problem)[0] if case.config is None else kernel.config_type(**case.config)
    check_formats(kernel, case.problem)
    kernel.check(case.problem, config)
    device = _device(target)
    sharding = jax.sharding.SingleDeviceSharding(device)
    problem = case.problem
    operands = _operand(problem.m, problem.k, problem.a_format), _operand(problem.n, problem.k, problem.b_format)
    a, b = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), operands)

    def gemm(a: Any, b: Any) -> Any:
        return kernel.matmul(a, b, config, case.problem.out_format)

    with tempfile.TemporaryDirectory() as dump:
        os.environ["MOSAIC_GPU_DUMP_TO"] = dump
        start_s = time.perf_counter()
        with jax.default_device(device):
            jax.jit(gemm).lower(a, b).compile()
        compile_s = time.perf_counter() - start_s
        return read_dump(Path(dump), case.kernel, case.target, asdict(config), compile_s)


def _device(target: Target) -> Any:
    """A device that only compiles, with the figures of `target`. XLA gives FP8 to cuBLASLt from CUDA 12 on alone."""
    from jax.experimental import topologies

    major, minor = target.capability
    description = f"""
    gpu_device_info {{
      threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048  fpus_per_core: 128
      shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
      registers_per_core_limit: 65536  registers_per_block_limit: 65536
      block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
      core_count: {target.cores}  l2_cache_size: {target.l2_bytes}  device_memory_size: {target.memory_bytes}
      memory_bandwidth: {int(target.bandwidth_bytes_s)}  clock_rate_ghz: {target.clock_hz / 1e9}
      cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: ACCELERATED_FEATURES }}
      driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: 9 minor: 10 }}
    device_description_str: "{target.kind}"
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=description, topology="1x1x1")
    return topology.devices[0]


def _operand(rows: int, k: int, format_name: str) -> Any:
    """Shapes and dtypes of an operand: an array, or a quantised array, of abstract values."""
    import jax

    element = format_named(format_name).element
    if element.bits >= 16:
        return jax.ShapeDtypeStruct((rows, k), element.dtype)
    from narrowgemm.formats.quantize import quantize

    return jax.eval_shape(lambda values: quantize(values, format_name), jax.ShapeDtypeStruct((rows, k), "float32"))


if __name__ == "__main__":
    main()
