"""Stand-ins for torch, Triton and nvmath-python's bindings that multiply with NumPy, in the memory they are handed.

They know only what the baselines use, and take it as the real ones do: cuBLASLt column-major with descriptors of
attributes, Triton a program at a time over tensor descriptors that cut off what lies outside.
"""

# ruff: noqa: ARG002, ARG005 - names and signatures are those of the libraries

import ctypes
import enum
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)


def memory(address: int, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """What lies at an address, as an array that can be written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_ubyte * size).from_address(address)
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


@dataclass
class FakeTensor:
    """A torch tensor over an array."""

    array: NDArray[Any]
    device: str = "cuda:0"

    def view(self, dtype: Any) -> "FakeTensor":
        return FakeTensor(self.array.view(dtype))

    def t(self) -> "FakeTensor":
        return FakeTensor(self.array.T)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def dtype(self) -> Any:
        return self.array.dtype


@dataclass
class FakeTorch:
    """`copies`: whether DLPack hands out copies. `calls`: what `_scaled_mm` was asked for."""

    copies: bool = False
    cores: int = 3
    calls: list[dict[str, Any]] = field(default_factory=list)
    __version__: str = "2.0.fake"
    float8_e4m3fn: Any = E4M3

    def from_dlpack(self, array: Any) -> FakeTensor:
        found = memory(array.unsafe_buffer_pointer(), array.shape, array.dtype)
        if self.copies or array.dtype == np.uint8:
            found = found.copy()  # bytes are a copy that nobody else keeps
        return FakeTensor(found)

    @property
    def cuda(self) -> Any:
        return SimpleNamespace(
            get_device_properties=lambda _: SimpleNamespace(multi_processor_count=self.cores),
        )

    def _scaled_mm(
        self, a: FakeTensor, b: FakeTensor, a_scale: FakeTensor, b_scale: FakeTensor, *, out: FakeTensor, **choices: Any
    ) -> None:
        self.calls.append(choices)
        assert a.dtype == b.dtype == E4M3
        assert b.array.flags.f_contiguous, "K is not contiguous in B"
        product = a.array.astype(np.float32) @ b.array.astype(np.float32)
        out.array[...] = (product * a_scale.array * b_scale.array).astype(out.dtype)


@dataclass
class FakeDescriptor:
    """A tensor descriptor: tiles of an array, zero where they lie outside of it."""

    array: NDArray[Any]
    tile: Sequence[int]

    @classmethod
    def from_tensor(cls, tensor: FakeTensor, tile: Sequence[int]) -> "FakeDescriptor":
        return cls(tensor.array, tile)

    def load(self, corner: Sequence[int]) -> NDArray[Any]:
        tile = np.zeros(self.tile, self.array.dtype)
        part = self.array[corner[0] : corner[0] + self.tile[0], corner[1] : corner[1] + self.tile[1]]
        tile[: part.shape[0], : part.shape[1]] = part
        return tile

    def store(self, corner: Sequence[int], tile: NDArray[Any]) -> None:
        assert tile.shape == tuple(self.tile)
        part = self.array[corner[0] : corner[0] + self.tile[0], corner[1] : corner[1] + self.tile[1]]
        part[...] = tile[: part.shape[0], : part.shape[1]]


class FakeTriton:
    """The modules `triton`, `triton.language` and `triton.tools.tensor_descriptor`; programs run one by one."""

    def __init__(self) -> None:
        self.program, self.programs = 0, 0
        self.triton, self.language = ModuleType("triton"), ModuleType("triton.language")
        self.tools, self.descriptors = ModuleType("triton.tools"), ModuleType("triton.tools.tensor_descriptor")
        vars(self.triton).update(jit=self._jit, language=self.language, tools=self.tools, __version__="3.0.fake")
        vars(self.descriptors).update(TensorDescriptor=FakeDescriptor)
        vars(self.language).update(
            constexpr=object,
            float32=np.float32,
            bfloat16=BF16,
            cdiv=lambda a, b: -(-a // b),
            minimum=min,
            program_id=lambda axis: self.program,
            num_programs=lambda axis: self.programs,
            range=lambda first, last, step, flatten: range(first, last, step),
            load=lambda tensor: np.float32(tensor.array),
            zeros=lambda shape, dtype: np.zeros(shape, dtype),
            dot=lambda a, b, sums: sums + a.astype(np.float32) @ b.astype(np.float32),
            reshape=np.reshape,
            permute=np.transpose,
            split=lambda pair: (pair[..., 0], pair[..., 1]),
            cast=lambda values, dtype: values.astype(dtype),
        )

    def modules(self) -> dict[str, ModuleType]:
        found = (self.triton, self.language, self.tools, self.descriptors)
        return {module.__name__: module for module in found}

    def _jit(self, function: Callable[..., Any]) -> Any:
        fake = self

        class Jitted:
            def __call__(self, *arguments: Any) -> Any:
                return function(*arguments)

            def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
                def launch(*arguments: Any, num_stages: int, num_warps: int, **choices: Any) -> None:
                    assert num_stages > 0
                    assert num_warps in (4, 8)
                    fake.programs = grid[0]
                    for program in range(fake.programs):
                        fake.program = program
                        function(*arguments, **choices)

                return launch

        return Jitted()


class _Kind(enum.IntEnum):
    """Attributes by name; every one is 64 bits wide here."""

    FAST_ACCUM = 1
    A_SCALE_POINTER = 2
    B_SCALE_POINTER = 3
    TRANSA = 4
    TRANSB = 5
    MAX_WORKSPACE_BYTES = 6
    ID = 10
    TILE_ID = 11
    STAGES_ID = 12
    SPLITK_NUM = 13
    REDUCTION_SCHEME = 14
    CTA_SWIZZLING = 15
    CUSTOM_OPTION = 16
    INNER_SHAPE_ID = 17
    CLUSTER_SHAPE_ID = 18


class _Tile(enum.IntEnum):
    TILE_128x256 = 7


class FakeLtError(Exception):
    """What the bindings raise."""


class _Results:
    """Heuristic results: an algorithm's number, bytes of workspace and state, in 96 bytes each."""

    def __init__(self, count: int, data: NDArray[np.int64] | None = None) -> None:
        self.data = np.zeros((count, 12), np.int64) if data is None else data

    ptr = property(lambda self: self.data.ctypes.data)
    workspace_size = property(lambda self: self.data[:, 8])
    state = property(lambda self: self.data[:, 9])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> "_Results":
        return _Results(0, self.data[rows])


class FakeLt:
    """nvmath.bindings.cublasLt, multiplying with NumPy. `states`: of the algorithms that the heuristic finds."""

    MatmulDescAttribute = MatmulPreferenceAttribute = MatmulAlgoConfigAttribute = _Kind
    MatmulTile, MatmulStages, ClusterShape = _Tile, _Tile, _Tile
    MatmulHeuristicResult = _Results
    cuBLASLtError = FakeLtError  # noqa: N815 - the library's name
    matmul_heuristic_result_dtype = np.dtype((np.void, 96))

    def __init__(self, states: Sequence[int] = (0, 1, 0)) -> None:
        self.states = states
        self.alive: dict[int, dict[int, int] | tuple[int, ...]] = {}
        self.ran: list[int] = []
        self._numbers = iter(range(1000, 10**6))

    def _made(self, thing: dict[int, int] | tuple[int, ...]) -> int:
        number = next(self._numbers)
        self.alive[number] = thing
        return number

    def create(self) -> int:
        return 1

    def get_version(self) -> int:
        return 130100

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        return self._made((kind, rows, columns, leading))

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0)
        return self._made({})

    def matmul_preference_create(self) -> int:
        return self._made({})

    def _destroy(self, number: int) -> None:
        del self.alive[number]

    matrix_layout_destroy = matmul_desc_destroy = matmul_preference_destroy = _destroy

    def get_matmul_desc_attribute_dtype(self, kind: _Kind) -> Any:
        return np.int8 if kind == _Kind.FAST_ACCUM else np.int64

    def get_matmul_algo_config_attribute_dtype(self, kind: _Kind) -> Any:
        return np.int64

    def _set(self, number: int, kind: int, address: int, size: int) -> None:
        values = self.alive[number]
        assert isinstance(values, dict)
        values[kind] = int.from_bytes(ctypes.string_at(address, size), sys.byteorder)

    matmul_desc_set_attribute = matmul_preference_set_attribute = _set

    def matmul_algo_config_get_attribute(self, algorithm: int, kind: int, address: int, size: int, _: int) -> None:
        number = memory(algorithm, (1,), np.int64)[0]
        memory(address, (1,), np.int64)[0] = number if kind == _Kind.ID else 7

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        *_, most, results, found = arguments
        assert most >= len(self.states)
        if not self.states:
            raise FakeLtError("NOT_SUPPORTED (15)")
        rows = memory(results, (len(self.states), 12), np.int64)
        for index, state in enumerate(self.states):
            rows[index, 0], rows[index, 8], rows[index, 9] = 60 + index, 1024 * index, state
        memory(found, (1,), np.int32)[0] = len(self.states)

    def matmul(self, *arguments: int) -> None:
        _, descriptor, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, *rest = arguments
        workspace, workspace_bytes, stream = rest
        assert workspace
        assert workspace_bytes >= 256
        assert stream == 0
        assert (c, c_layout) == (d, d_layout)
        assert memory(alpha, (1,), np.float32)[0] == 1
        assert memory(beta, (1,), np.float32)[0] == 0
        values = self.alive[descriptor]
        assert isinstance(values, dict)
        left, right = self._matrix(a, a_layout), self._matrix(b, b_layout)
        left = left.T if values.get(_Kind.TRANSA) else left
        right = right.T if values.get(_Kind.TRANSB) else right
        product = left.astype(np.float32) @ right.astype(np.float32)
        for kind in (_Kind.A_SCALE_POINTER, _Kind.B_SCALE_POINTER):
            if kind in values:
                product = product * memory(values[kind], (), np.float32)
        self._matrix(d, d_layout)[...] = product
        self.ran.append(int(memory(algorithm, (1,), np.int64)[0]))

    def _matrix(self, address: int, layout: int) -> NDArray[Any]:
        """Column-major."""
        found = self.alive[layout]
        assert isinstance(found, tuple)
        kind, rows, columns, leading = found
        assert leading == rows
        return memory(address, (columns, rows), {0: np.float32, 14: BF16, 28: E4M3}[kind]).T


class NoMarks:
    """Of a device that works while the host waits."""

    def enter(self) -> None:
        pass

    def mark(self) -> None:
        return None

    def wait(self, token: Any) -> None:
        pass
