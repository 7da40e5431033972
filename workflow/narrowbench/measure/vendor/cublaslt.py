"""Baselines: C[m,n] = Σ_k A[m,k]·B[n,k] by cuBLASLt, reached through nvmath-python's bindings, its algorithms searched.

cuBLASLt is column-major, so it is asked for Cᵀ (n, m) = B·Aᵀ: its first operand is B, transposed, its second A as it
lies, K contiguous in both, which is the one order that it takes FP8 in. FP8 operands come with a scale of FP32 each,
which it reads on the device, and fast accumulation is on: partial sums stay in the tensor core's own registers. All
algorithms of its heuristic are offered to be timed: its first guess alone is no baseline. Other algorithms that could
be configured by hand are not.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from narrowbench.measure.vendor.baseline import Baseline, Way, check_multiples, imported
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.problem import GemmProblem

#: cudaDataType_t of library_types.h and cublasComputeType_t of cublas_api.h.
_TYPES = {"f32": 0, "bf16": 14, "fp8_e4m3": 28}
_COMPUTE_32F = 68
#: cublasOperation_t: as it lies, transposed.
_AS_IT_LIES, _TRANSPOSED = 0, 1
#: Asked of the heuristic, best guesses first: further ones only make the search longer.
_MOST_ALGORITHMS = 100
#: What an algorithm may use beside its operands: a split of K keeps partial sums of C there, in FP32.
_WORKSPACE_BYTES = 2**28
#: An algorithm's choices, by their names here and in `cublasLtMatmulAlgoConfigAttributes_t`.
_CHOICES = {
    "algorithm": "ID",
    "tile": "TILE_ID",
    "stages": "STAGES_ID",
    "split_k": "SPLITK_NUM",
    "reduction": "REDUCTION_SCHEME",
    "swizzle": "CTA_SWIZZLING",
    "custom": "CUSTOM_OPTION",
    "inner_shape": "INNER_SHAPE_ID",
    "cluster": "CLUSTER_SHAPE_ID",
}
#: Choices whose numbers the bindings have names for.
_NAMED = {"tile": "MatmulTile", "stages": "MatmulStages", "cluster": "ClusterShape"}


@dataclass(eq=False)
class _Bound:
    """A descriptor, which holds where the scales lie, and the addresses of A, B and C."""

    descriptor: int
    a: int
    b: int
    out: int


@dataclass
class CublasLt:
    """cuBLASLt made ready for one problem."""

    name: str
    problem: GemmProblem
    lt: Any
    alpha: Any = field(default_factory=lambda: np.ones(1, np.float32))
    beta: Any = field(default_factory=lambda: np.zeros(1, np.float32))

    def __post_init__(self) -> None:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        operand, out = _TYPES[self.problem.a_format], _TYPES[self.problem.out_format]
        self._handle = _handle(self.lt)
        self._layouts = [
            self.lt.matrix_layout_create(kind, rows, columns, rows)
            for kind, rows, columns in ((operand, k, n), (operand, k, m), (out, n, m))
        ]
        for layout in self._layouts:
            weakref.finalize(self, self.lt.matrix_layout_destroy, layout)

    def bound(self, a: QuantizedArray, b: QuantizedArray, out: jax.Array) -> _Bound:
        """Addresses of arrays that are ready; see `Library`."""
        jax.block_until_ready((a, b, out))
        attributes = {"TRANSA": _TRANSPOSED, "TRANSB": _AS_IT_LIES}
        if self.problem.a_format == "fp8_e4m3":
            attributes["FAST_ACCUM"] = 1
        for name, scale in (("A", b.tensor_scale), ("B", a.tensor_scale)):
            if scale is not None:
                attributes[f"{name}_SCALE_POINTER"] = scale.unsafe_buffer_pointer()
        descriptor = self.lt.matmul_desc_create(_COMPUTE_32F, _TYPES["f32"])
        for name, value in attributes.items():
            kind = self.lt.MatmulDescAttribute[name]
            _set(
                self.lt.matmul_desc_set_attribute,
                descriptor,
                kind,
                self.lt.get_matmul_desc_attribute_dtype(kind),
                value,
            )
        pointers = (array.unsafe_buffer_pointer() for array in (a.codes, b.codes, out))
        bound = _Bound(descriptor, *pointers)
        weakref.finalize(bound, self.lt.matmul_desc_destroy, descriptor)
        return bound

    def ways(self, bound: _Bound) -> Sequence[Way]:
        """The heuristic's algorithms, best guess first; see `Library`."""
        results = self._heuristic(bound)
        size, version = self.lt.matmul_heuristic_result_dtype.itemsize, _version_text(self.lt.get_version())
        usable = [index for index in range(len(results)) if int(np.atleast_1d(results.state)[index]) == 0]
        needed = [int(np.atleast_1d(results.workspace_size)[index]) for index in usable]
        # Full of NaN, like the output when it is checked: what an algorithm reads there it must have written.
        workspace = jax.block_until_ready(jnp.full(max([*needed, 256]), 0xFF, jnp.uint8))
        ways = []
        for rank, (index, workspace_bytes) in enumerate(zip(usable, needed, strict=True)):
            algorithm = results.ptr + index * size
            told = {"library": f"cuBLASLt {version}", "rank": rank, **self._choices(algorithm)}
            told |= {"workspace_bytes": workspace_bytes, "fast_accumulation": self.problem.a_format == "fp8_e4m3"}
            ways.append(Way(told, partial(self._launch, algorithm, workspace, results)))
        return ways

    def _launch(self, algorithm: int, workspace: jax.Array, kept: Any, bound: _Bound) -> None:
        """`kept` is what `algorithm` points into."""
        del kept
        b_layout, a_layout, out_layout = self._layouts
        self.lt.matmul(
            self._handle,
            bound.descriptor,
            self.alpha.ctypes.data,
            bound.b,
            b_layout,
            bound.a,
            a_layout,
            self.beta.ctypes.data,
            bound.out,
            out_layout,
            bound.out,
            out_layout,
            algorithm,
            workspace.unsafe_buffer_pointer(),
            workspace.size,
            0,
        )

    def _heuristic(self, bound: _Bound) -> Any:
        lt = self.lt
        results, found = lt.MatmulHeuristicResult(_MOST_ALGORITHMS), np.zeros(1, np.int32)
        b_layout, a_layout, out_layout = self._layouts
        preference = lt.matmul_preference_create()
        try:
            kind = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
            _set(lt.matmul_preference_set_attribute, preference, kind, np.uint64, _WORKSPACE_BYTES)
            lt.matmul_algo_get_heuristic(
                self._handle,
                bound.descriptor,
                b_layout,
                a_layout,
                out_layout,
                out_layout,
                preference,
                _MOST_ALGORITHMS,
                results.ptr,
                found.ctypes.data,
            )
        except lt.cuBLASLtError as error:
            raise self._no_algorithm(str(error)) from error
        finally:
            lt.matmul_preference_destroy(preference)
        if not found[0]:
            raise self._no_algorithm("none found")
        return results[: int(found[0])]

    def _no_algorithm(self, told: str) -> UnsupportedError:
        values: dict[str, object] = {"m": self.problem.m, "n": self.problem.n, "k": self.problem.k}
        rule = f"is a shape that cuBLASLt {_version_text(self.lt.get_version())} has no algorithm for ({told})"
        return UnsupportedError(self.name, values, rule, "pad the operands, or use another baseline")

    def _choices(self, algorithm: int) -> dict[str, object]:
        """What an algorithm chose, by name where the bindings know one: they are older than some algorithms."""
        choices: dict[str, object] = {}
        for name, attribute in _CHOICES.items():
            kind = self.lt.MatmulAlgoConfigAttribute[attribute]
            value, written = np.zeros(1, self.lt.get_matmul_algo_config_attribute_dtype(kind)), np.zeros(1, np.uint64)
            self.lt.matmul_algo_config_get_attribute(
                algorithm, int(kind), value.ctypes.data, value.nbytes, written.ctypes.data
            )
            choices[name] = int(value[0])
            if name in _NAMED:
                known = {int(member): member.name for member in getattr(self.lt, _NAMED[name])}
                choices[name] = known.get(int(value[0]), int(value[0]))
        return choices


def _set(setter: Any, target: int, kind: Any, dtype: Any, value: int) -> None:
    held = np.array([value], dtype)
    setter(target, int(kind), held.ctypes.data, held.nbytes)


@cache
def _handle(lt: Any) -> int:
    """One for the process: it is made for the device that is current, and a process measures on one."""
    handle: int = lt.create()
    return handle


def _version_text(version: int) -> str:
    """130100 is 13.1.0."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def _load(name: str) -> Any:
    return imported(name, "nvmath-python", "nvmath.bindings.cublasLt")


def _check(name: str, least: int, problem: GemmProblem) -> None:
    check_multiples(name, problem, least, least)


def _baseline(name: str, operand_format: str, least: int) -> Baseline:
    """`least`: of n and k, so that rows of operands and result begin at whole 16 bytes."""
    return Baseline(
        name,
        operand_format,
        ("bf16",),
        ("hopper", "blackwell"),
        partial(_check, name, least),
        partial(_load, name),
        lambda problem: CublasLt(name, problem, _load(name)),
    )


BASELINES = (_baseline("cublaslt_bf16", "bf16", 8), _baseline("cublaslt_fp8_e4m3", "fp8_e4m3", 16))
