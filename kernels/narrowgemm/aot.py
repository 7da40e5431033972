"""Compile kernels for a chip that is not there, and read what came out: resources and instructions of the machine code.

Every kernel is compiled in a child process, because JAX reads its environment once, when it is imported, and because a
compiler that meets what it cannot do may abort: an abort then costs its case alone. The parent never imports JAX.

For a GPU this needs the extra `aot` (the CUDA plugin of JAX, ptxas, nvdisasm and libdevice), for a TPU the extra `tpu`
(libtpu), and never the chip.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.machine_code import ASSEMBLED, LOWERED, MachineCode, read_gpu_dump, read_tpu_dump
from narrowgemm.problem import NO_EPILOGUE, GemmProblem
from narrowgemm.targets import GpuTarget, Target, TpuTarget, target_named


@dataclass(frozen=True)
class CompileCase:
    """A kernel to be compiled for a target.

    config:    fields of the kernel's `Config`; None: its first candidate.
    quantised: the block format that the epilogue stores instead of the problem's `out_format`; None: none.
    epilogue:  name of what is done before the store (`narrowgemm.problem.epilogue_parts`).
    products:  "batched": `count` times the problem in one launch; "grouped": its rows in `count` groups.
    """

    kernel: str
    target: str
    problem: GemmProblem
    config: dict[str, Any] | None = None
    quantised: str | None = None
    epilogue: str = NO_EPILOGUE
    products: Literal["one", "batched", "grouped"] = "one"
    count: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `ok` has its code, `unsupported` and `failed` have a reason."""

    case: CompileCase
    status: Literal["ok", "unsupported", "failed"]
    code: MachineCode | None
    reason: str | None


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
    environments = {name: environment_for(target_named(name)) for name in {case.target for case in cases}}
    for target, group in itertools.groupby(cases, key=lambda case: case.target):
        waiting = list(group)
        while waiting:
            with _Child(waiting, environments[target]) as child:
                for outcome in child:
                    waiting = waiting[1:]
                    yield outcome
                if waiting:
                    yield Outcome(waiting[0], "failed", None, f"the compiler died: {child.last_words()}")
                    waiting = waiting[1:]


def environment_for(target: Target, *, reads_code: bool = True) -> dict[str, str]:
    """Environment of a process that compiles for `target`, and `reads_code` of what came out.

    Raises UnsupportedError without the packages that this takes.
    """
    if isinstance(target, GpuTarget):
        return _gpu_environment(reads_code)
    if importlib.util.find_spec("libtpu") is None:
        raise UnsupportedError(
            "aot",
            {"missing": ["libtpu"]},
            "is needed to compile for an absent TPU",
            "install the extra `tpu` (narrowgemm[tpu])",
        )
    # The accelerator's type only has to be one that libtpu knows: what is compiled for is the topology.
    return _common_environment() | {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        # libtpu keeps a chip for one process; where there is none, several may compile side by side.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def _common_environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


def _gpu_environment(reads_code: bool) -> dict[str, str]:
    """The first ptxas on PATH is the one that runs, whatever is installed: the packaged one goes first."""
    nvidia = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    roots = [Path(place) for place in (nvidia.submodule_search_locations or ())] if nvidia else []
    wanted = ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc", *(["bin/nvdisasm"] if reads_code else []))
    missing = [name for name in wanted if not any((root / name).exists() for root in roots)]
    missing += [name for name in ("jax_cuda13_plugin", "jax_plugins") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "aot",
            {"missing": missing},
            "are needed to compile for an absent GPU",
            "install the extra `aot` (narrowgemm[aot])",
        )
    return _common_environment() | {
        "PATH": os.pathsep.join([str(roots[0] / "bin"), os.environ.get("PATH", "")]),
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    }


#: Environment variable: the child's folder for what the compilers leave, emptied before each case.
_DUMP = "NARROWGEMM_AOT_DUMP"
#: Variables that have Mosaic GPU print parts, and which parts: while it lowers, and while it assembles. A folder of its
#: own (…TO) would get all parts, of them the module after each pass, at up to twice the time of compiling.
_PRINT = "MOSAIC_GPU_DUMP_"
_LOWERED, _ASSEMBLED = ("MLIR_PASSES", "RESOURCES"), ("PTXAS", "SASS_CTRL")


class _Child:
    """A process that compiles cases of one target, a line of JSON back for each; iterating yields the outcomes."""

    def __init__(self, cases: Sequence[CompileCase], environment: dict[str, str]) -> None:
        self._cases = cases
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed on exit)
        self._dump = tempfile.TemporaryDirectory()
        dumps = {
            _DUMP: self._dump.name,
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={self._dump.name} --xla_jf_dump_llo_text=true",
        }
        # What the user has Mosaic GPU write elsewhere would not be printed.
        environment = {name: value for name, value in environment.items() if not name.startswith(_PRINT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "narrowgemm.aot"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment | dumps,
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
        self._dump.cleanup()

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
    check_formats(kernel, case.problem)
    gemm, given, config = (_one_product if case.products == "one" else _many_products)(case, kernel)
    device = device_of(target)
    given = abstract_on(device, given)
    dump = Path(os.environ[_DUMP])
    for left_by_the_case_before in dump.iterdir():
        left_by_the_case_before.unlink()
    start_s = time.perf_counter()
    with jax.default_device(device):
        with _printed(dump / LOWERED, _LOWERED):
            lowered = jax.jit(gemm).lower(*given)
        with _printed(dump / ASSEMBLED, _ASSEMBLED):
            lowered.compile()
    compile_s = time.perf_counter() - start_s
    read = read_gpu_dump if isinstance(target, GpuTarget) else read_tpu_dump
    return read(dump, kernel.name, target.name, asdict(config), compile_s)


@contextlib.contextmanager
def _printed(path: Path, parts: Sequence[str]) -> Iterator[None]:
    """Mosaic GPU prints these `parts`, and standard output, of the compilers too, goes to a file."""
    variables = dict.fromkeys((f"{_PRINT}{part}" for part in parts), "1")
    sys.stdout.flush()
    before = os.dup(1)
    with path.open("w") as file:
        os.dup2(file.fileno(), 1)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def _one_product(case: CompileCase, kernel: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """What is compiled of a case, its abstract arguments, and the config."""
    import jax

    from narrowgemm.gemm import epilogue as epilogues
    from narrowgemm.gemm.api import check_epilogue

    problem = case.problem
    config = kernel.candidates(problem)[0] if case.config is None else kernel.config_type(**case.config)
    kernel.check(problem, config)
    a, b = _operand(problem.m, problem.k, problem.a_format), _operand(problem.n, problem.k, problem.b_format)
    b = jax.eval_shape(kernel.prepared, b)

    def gemm(a: Any, b: Any, epilogue: Any) -> Any:
        if case.epilogue != NO_EPILOGUE:
            check_epilogue(kernel, case.epilogue)
            assert kernel.matmul_epilogue is not None
            return kernel.matmul_epilogue(a, b, config, problem.out_format, epilogue)
        if case.quantised is None:
            return kernel.matmul(a, b, config, problem.out_format)
        if kernel.matmul_quantised is None:
            values: dict[str, object] = {"quantised": case.quantised}
            raise UnsupportedError(kernel.name, values, "is not what its epilogue can store", "use another kernel")
        tensor_scale = jax.numpy.float32(1) if format_named(case.quantised).tensor_scale else None
        return kernel.matmul_quantised(a, b, config, case.quantised, tensor_scale)

    return gemm, (a, b, epilogues.shapes(problem, case.epilogue)), config


def _many_products(case: CompileCase, kernel: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """As `_one_product`, of a batch or of groups."""
    import jax

    from narrowgemm.formats.quantize import as_quantized
    from narrowgemm.formats.stack import as_stack
    from narrowgemm.gemm.registry import products_of

    assert case.products != "one"
    problem, products = case.problem, products_of(kernel.name, case.products)
    if products is None:
        values: dict[str, object] = {"products": case.products}
        raise UnsupportedError(kernel.name, values, "is not what it does in one launch", "use another kernel")
    choices = products.candidates(problem, case.count)
    config = choices[0] if case.config is None else kernel.config_type(**case.config)
    products.check(problem, case.count, config)
    b = _operand(problem.n, problem.k, problem.b_format, case.count)

    def batched(a: Any, b: Any) -> Any:
        return products.matmul(as_stack("a", a), as_stack("b", b), config, problem.out_format)

    def grouped(a: Any, b: Any, sizes: Any) -> Any:
        return products.matmul(as_quantized(a), as_stack("b", b), sizes, config, problem.out_format)

    if case.products == "batched":
        return batched, (_operand(problem.m, problem.k, problem.a_format, case.count), b), config
    sizes = jax.ShapeDtypeStruct((case.count,), "int32")
    return grouped, (_operand(problem.m, problem.k, problem.a_format), b, sizes), config


def device_of(target: Target) -> Any:
    """A JAX device that only compiles; in a process with the environment of `environment_for`."""
    from jax.experimental import topologies

    if isinstance(target, TpuTarget):
        return topologies.get_topology_desc(target.topology, platform="tpu").devices[0]
    topology = topologies.get_topology_desc(platform="cuda", target_config=target.description, topology="1x1x1")
    return topology.devices[0]


def abstract_on(device: Any, operands: Any) -> Any:
    """The operands, arrays or abstract ones, as abstract arrays on a device that `device_of` gave."""
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), operands)


def _operand(rows: int, k: int, format_name: str, count: int | None = None) -> Any:
    """Shapes and dtypes of an operand, or of a stack: an array, or a quantised array, of abstract values."""
    import jax

    from narrowgemm.formats.quantize import quantize

    element = format_named(format_name).element
    shape = (rows, k) if count is None else (count, rows, k)
    if element.bits >= 16:
        return jax.ShapeDtypeStruct(shape, element.dtype)

    def quantized(values: Any) -> Any:
        return quantize(values, format_name)

    return jax.eval_shape(quantized if count is None else jax.vmap(quantized), jax.ShapeDtypeStruct(shape, "float32"))


if __name__ == "__main__":
    main()
