"""C = Σ_b scale_a[m,b]·scale_b[n/128,b]·(A_b·B_bᵀ)[m,n] on Hopper's wgmma, over blocks b of 128 of K: E4M3 by blocks.

A (M×K): 1×128 blocks, an FP32 scale for each row and 128 of K. B (N×K): 128×128 blocks. K contiguous and a multiple of
16, any M; C's rows are whole 16 bytes. The last blocks may be smaller. C (M×N): F32, BF16, F16 or FP8, rounded once.

Two levels of accumulation. wgmma adds one block, 128 of K, in registers that it begins by overwriting. These partial
sums are then promoted: acc += partial · (scale_a·scale_b), a fused multiply-add an element in FP32 on the CUDA cores.
So the tensor core's few bits have to last for 128 of K, and the rest of the sum is FP32's (`narrowgemm.gemm.oracle`).

Roles, barriers and stores are those of `_hopper_wgmma`, with a stage of 128 of K. What a consumer does meanwhile:
  a part     64 rows × `part_n` columns of its tile. Its partial sum is one commit group of four wgmmas.
  in flight  so many parts multiply before the first is waited for and promoted beside the others. All that are begun
             in a round of `round_k` steps end in it: ptxas makes each wgmma wait for the one before where two
             accumulators are in flight around a loop.
  a gap      while a round's last part is promoted, this consumer multiplies nothing. The others do, if they are not in
             gaps as well. The tensor core takes instructions of several warps in turn, in whatever order their parts
             were issued: parts that multiply at once end within an instruction of each other, and then so begin the
             gaps. With two consumers a gap less one instruction is lost, with three a gap less two.
  a stage    is given back when its last part has been waited for, before that is promoted. A round's first stage is
             waited for, and its descriptors are computed, while the round before still multiplies: not in the gap.

Scales need no barrier. Four threads share a row of an accumulator: each fetches one of four blocks' scales straight
from global memory, A's times B's, four steps ahead, and gives it to the others by a shuffle when its step has come; a
load of one scale a row and step would take shared memory's bandwidth from wgmma, eight lines for 32 bytes. What lies
outside of the scales repeats the last one, and meets only rows and columns that are not stored, or steps that are not
done. Where tiles are no multiple of 128 wide, a part can meet two blocks of B, and then has two factors a row.

Registers: accumulator and parts in flight take at most 192 of a consumer's 232 a thread; so 64×256 of C a consumer has
parts of 128 columns, one in flight, and 64×128 has two of them. Of three consumers each has 160, and they take at most
128: 64×128 of C and a part of as many columns.

Source of the idea: the DeepSeek-V3 technical report (arXiv:2412.19437, section 3.3.2) for the blocks and the promotion.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.quantize import Operand, QuantizedArray
from narrowgemm.gemm import _hopper_block128_space, _hopper_wgmma, _wgmma_epilogue, _wgmma_promote, _wgmma_ptx
from narrowgemm.gemm._hopper_block128_space import BLOCK, NAME, Config
from narrowgemm.gemm._hopper_wgmma import Accumulation, Tile
from narrowgemm.gemm._wgmma_promote import WINDOW
from narrowgemm.gemm._wgmma_ptx import ROWS
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

#: Accumulators of the parts of a consumer's tile: of rows from top to bottom, and in each of columns.
Parts = list[list[jax.Array]]


class Stage(NamedTuple):
    """A stage: its number, and the descriptors of the tile's rows of A and of B in it."""

    number: jax.Array
    a: jax.Array
    b: jax.Array


#: For each part the factors of its rows, four steps of K: one array, or two where it meets two blocks of B.
Windows = list[list[list[jax.Array]]]


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    _hopper_block128_space.check_block128(problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return _hopper_block128_space.candidates_block128(problem)


def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ, all scales included, as an M×N array of `out_format`."""
    return _hopper_wgmma.launch(NAME, a, b, config, out_format, interpret, None, _accumulation(config))


def matmul_epilogue(
    a: Operand, b: Operand, config: Config, out_format: str, epilogue: Epilogue, interpret: bool = False
) -> jax.Array:
    """As `matmul`, with the epilogue applied to the FP32 accumulator before it is stored."""
    return _hopper_wgmma.launch(NAME, a, b, config, out_format, interpret, epilogue, _accumulation(config))


def _accumulation(config: Config) -> Accumulation:
    return Accumulation(
        _scales,
        lambda tile, a_scales, b_scales, interpret: _Consumer(config, tile, a_scales, b_scales, interpret).sums(),
        are_scaled=True,
    )


def _scales(operand: QuantizedArray) -> jax.Array:
    """A's scales (M, blocks of K); B's as one row after the other, since a consumer reads from a single one."""
    assert operand.scales is not None
    return operand.scales if operand.spec.block_rows == 1 else operand.scales.reshape(-1)


class _Consumer:
    """What one consumer does with one tile, inside the kernel; scales are references to global memory."""

    def __init__(self, config: Config, tile: Tile, a_scales: Any, b_scales: Any, interpret: bool) -> None:
        self._config, self._tile, self._interpret = config, tile, interpret
        self._a_scales, self._b_scales = a_scales, b_scales
        self._rows = range(0, tile.shape[0], ROWS)
        self._columns = range(0, tile.shape[1], config.part_n)
        # Where a part begins, and where it can meet another block of B, is a multiple of this.
        self._grain = _hopper_block128_space.grain(config)
        self._blocks_of_b = 1 if config.part_n <= self._grain else 2

    def sums(self) -> jax.Array:
        """The tile's sums, in groups of `WINDOW` steps: while one is added, the next one's scales arrive."""
        all_rounds, left = divmod(self._tile.k_steps, self._config.round_k)
        groups, rounds = divmod(all_rounds, WINDOW // self._config.round_k)
        # A last group of fewer rounds, of which nothing is left, is the same code: a second copy of it would spill.
        ends_early = rounds > 0 and left == 0
        if ends_early:
            groups, rounds = groups + 1, 0

        def group(number: jax.Array, carry: tuple[Windows, Parts, Stage]) -> tuple[Windows, Parts, Stage]:
            windows, totals, stage = carry
            upcoming, count = self._windows((number + 1) * WINDOW), WINDOW // self._config.round_k
            in_group = jnp.minimum(count, all_rounds - number * count) if ends_early else count
            return upcoming, *self._rounds(in_group, number * WINDOW, windows, totals, stage)

        stage = self._stage(self._tile.stage_of(0))
        self._tile.wait(stage.number)
        zeros = [[_wgmma_ptx.zeros((ROWS, self._config.part_n), self._interpret) for _ in self._columns]]
        begin = (self._windows(jnp.int32(0)), zeros * len(self._rows), stage)
        windows, totals, stage = lax.fori_loop(0, groups, group, begin)
        if rounds:
            totals, stage = self._rounds(rounds, jnp.int32(groups * WINDOW), windows, totals, stage)
        if left:
            totals, _ = self._round(left, jnp.int32(self._tile.k_steps - left), windows, totals, stage)
        return _wgmma_promote.joined(totals, self._interpret)

    def _windows(self, k_step: jax.Array) -> Windows:
        """Factors of all parts for `WINDOW` steps from `k_step` on."""
        load = functools.partial(_wgmma_epilogue.load_clamped, interpret=self._interpret)

        def of_a(row: int) -> jax.Array:
            return load(self._a_scales, (self._tile.row + row, k_step), (ROWS, WINDOW), _wgmma_promote.QUAD)

        def of_b(column: int, number: int) -> jax.Array:
            block = lax.div(self._tile.column + column, jnp.int32(BLOCK)) + number
            first = block * self._tile.k_steps + k_step
            window = load(self._b_scales, (first,), (WINDOW,), _wgmma_promote.QUAD.reduce(0))
            return lax.broadcast_in_dim(window, (ROWS, WINDOW), (1,))

        along_n = [[of_b(column, number) for number in range(self._blocks_of_b)] for column in self._columns]
        return [[[a * b for b in part] for part in along_n] for a in map(of_a, self._rows)]

    def _rounds(
        self, count: int | jax.Array, first: jax.Array, windows: Windows, totals: Parts, stage: Stage
    ) -> tuple[Parts, Stage]:
        """So many rounds, from step `first` on, which is the windows' first; returns the totals and the next stage."""

        def one(number: jax.Array, carry: tuple[Parts, Stage]) -> tuple[Parts, Stage]:
            return self._round(self._config.round_k, first + number * self._config.round_k, windows, *carry)

        result: tuple[Parts, Stage] = lax.fori_loop(0, count, one, (totals, stage))
        return result

    def _round(
        self, steps: int, first: jax.Array, windows: Windows, totals: Parts, stage: Stage
    ) -> tuple[Parts, Stage]:
        """So many steps from step `first` on, whose stage has been waited for, as one pipeline of parts."""
        totals = [list(row) for row in totals]
        stages = [stage]
        places = [(x, y) for x in range(len(self._rows)) for y in range(len(self._columns))]
        parts = [(step, x, y) for step in range(steps) for x, y in places]
        waiting, in_flight = list(parts), list[jax.Array]()
        for step, x, y in parts:
            while waiting and len(in_flight) < self._config.in_flight:
                begun, *place = waiting.pop(0)
                if begun == len(stages):
                    stages.append(self._next(stages[-1], first + begun))
                in_flight.append(self._multiply(stages[begun], *place))
                if tuple(place) == places[0] and (self._config.in_flight == 1 or begun == steps - 1):
                    stages.append(self._next(stages[-1], first + begun + 1))
            column = (first & (WINDOW - 1)) + step
            factors = [_wgmma_promote.column_of(window, column, self._interpret) for window in windows[x][y]]
            plgpu.wgmma_wait(len(in_flight) - 1)
            if (x, y) == places[-1]:
                self._tile.leave(stages[step].number)
            in_first_block = BLOCK - lax.rem(self._tile.column + self._columns[y], jnp.int32(BLOCK))
            totals[x][y] = _wgmma_promote.promote(
                totals[x][y], in_flight.pop(0), factors, in_first_block, self._grain, self._interpret
            )
        return totals, stages[-1]

    def _next(self, stage: Stage, k_step: jax.Array) -> Stage:
        """The stage of step `k_step`, after the one before; waited for if there is such a step."""
        following = stage.number + 1
        found = self._stage(jnp.where(following == self._tile.stages, 0, following))
        pl.when(k_step < self._tile.k_steps)(lambda: self._tile.wait(found.number))
        return found

    def _stage(self, number: jax.Array) -> Stage:
        a, b = self._tile.operands(number)
        return Stage(
            number, _wgmma_promote.descriptor_of(a, self._interpret), _wgmma_promote.descriptor_of(b, self._interpret)
        )

    def _multiply(self, stage: Stage, x: int, y: int) -> jax.Array:
        a, b = self._tile.operands(stage.number)
        rows, columns = self._rows[x], self._columns[y]
        a, b = a.at[pl.ds(rows, ROWS)], b.at[pl.ds(columns, self._config.part_n)]
        of_a, of_b = stage.a + rows * _wgmma_ptx.ROW_STEP, stage.b + columns * _wgmma_ptx.ROW_STEP
        return _wgmma_promote.multiply(a, b, of_a, of_b, self._interpret)


KERNELS = (
    Kernel(
        name=NAME,
        arch="hopper",
        is_baseline=False,
        a_formats=("fp8_e4m3_1x128",),
        b_formats=("fp8_e4m3_128x128",),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
        matmul_epilogue=matmul_epilogue,
        check_epilogue=functools.partial(_wgmma_epilogue.check_room, NAME),
    ),
)
