"""C = scale · A·Bᵀ on Hopper, B packed FP4 or FP6 weights: what the kernels `hopper_wgmma_w*` share.

The operands are swapped: the kernel computes Cᵀ = B·Aᵀ, so that the weights are wgmma's left operand, which may come
from registers, and the few rows of A are the dimension of it that goes down to 8. B comes shuffled off-line
(`narrowgemm.formats.shuffle`), travels packed, and is widened in registers (`_weight_widening`).

The grid is persistent. A piece of work is a tile of tile_m×128 of C and one of `splits` parts of K; where K is split,
the parts of C are stored in FP32 and added by XLA in a fixed order, so that every run gives the same bits.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers  a pair or two, of a pair 64 of N each: packed words and scales -> registers -> widened -> wgmma with A
             from shared memory; scale, convert, transpose into shared memory, store by TMA. Two pairs take the steps
             of a piece in turn; the second hands its sums over to the first, which adds and stores;
  producer   the last: issues the TMA loads of all K steps of all pieces in order, as far ahead as there are stages.

Barriers, of which the first two are one a stage of 128 of K each:
  full   an arrival a copy: the weights' tiles of both consumers, and A in boxes as wide as a wgmma's step of scales.
         The consumers of the step's pair wait for it: each pair has barriers of its own, for who waits for a barrier
         waits for all of its phases.
  empty  an arrival a consumer of the pair, after its wgmmas have read A. The producer waits for it, and at the end once
         more for every stage in use.
  handed, taken  with two pairs, one each for each 64 of N, an arrival of one consumer: the second pair's sum of a piece
         is there; the first has read it. The second pair waits for `taken` before it hands over again, and at the end.
A consumer's staging tile is written again when the store before has been read out.

Where the scales go. BF16: into the weights, exactly; FP32 accumulates all of K in the tensor core. FP8: each block of
scales has an accumulator of its own, which is multiplied by the rows' scales and added in FP32 registers; that also
lifts the tensor core's narrow FP8 accumulation after every 32 of K. Its cost grows with tile_m: tile_m/32 FP32
operations a weight, twice that for NVFP4, whose blocks of 16 halve a wgmma's K by zeros.

Edges need no code of their own: TMA fills with zeros what lies outside A, drops what lies outside C, and the shuffled
weights are padded with zeros.

JAX interprets neither the register code nor wgmma with a left operand in registers. In the interpreter a plain product
with the tile's values stands in for both, so that copies, barriers and stores run with races detected; the widening and
the fragments are tested in NumPy.

Source of the idea: Marlin (arXiv:2408.11743) for weights in fragment order and FP6-LLM (arXiv:2401.14112) for bits
that wait where they are wanted; the placements here are this library's own.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import Operand, as_quantized, dequantize
from narrowgemm.formats.shuffle import TILE_K, TILE_ROWS, ShuffledWeights, placement_of, unshuffle_weights
from narrowgemm.formats.spec import E4M3, format_named
from narrowgemm.gemm import _hopper_sums, _mosaic_gpu, _wgmma_weights
from narrowgemm.gemm._hopper import CONSUMERS, REGISTERS, scale_operand
from narrowgemm.gemm._hopper_weights_space import TILE_N, Config, box_columns, piece, steps_of_part
from narrowgemm.gemm._weight_widening import fragments_bf16, fragments_fp8
from narrowgemm.tiling import ceil_div

#: Accumulators a thread that are in flight at once, by pairs: with them, the sum and the weights nothing spills.
IN_FLIGHT_REGISTERS = {1: 64, 2: 32}


def launch(name: str, a: Operand, b: Any, config: Config, out_format: str, interpret: bool) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times the tensor scales, M×N of `out_format`; the problem has passed `check`."""
    qa = as_quantized(a)
    _check_operands(name, qa.spec.element.bits, b)
    m, n = qa.shape[0], b.shape[0]
    out_dtype = format_named(out_format).element.dtype
    part_dtype = out_dtype if config.splits == 1 else jnp.dtype(jnp.float32)
    pieces = (ceil_div(m, config.tile_m), ceil_div(n, TILE_N), config.splits)
    box = box_columns(qa.format)
    kernel = plgpu.kernel(
        functools.partial(_body, config=config, pieces=pieces, weights=_Weights(b), box=box, interpret=interpret),
        out_type=jax.ShapeDtypeStruct((config.splits, m, n), part_dtype),
        grid=(min(_mosaic_gpu.core_count(interpret), pieces[0] * pieces[1] * pieces[2]),),
        grid_names=("blocks",),
        num_threads=config.pairs * CONSUMERS + 1,
        thread_name="role",
        scratch_types=(
            plgpu.SMEM((config.stages, CONSUMERS, *b.tiles.shape[2:]), jnp.uint32),
            _mosaic_gpu.tile_buffer(
                config.stages * TILE_K // box, config.tile_m, qa.codes.dtype, interpret, columns=box
            ),
            plgpu.SMEM((CONSUMERS, config.tile_m, TILE_ROWS), part_dtype),
            plgpu.Barrier(num_arrivals=1 + TILE_K // box, num_barriers=config.stages * config.pairs),
            plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=config.stages),
            *_second_pair(config),
        ),
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
    )
    scales = map(scale_operand, (qa.tensor_scale, b.tensor_scale))
    parts: jax.Array = kernel(b.tiles, qa.codes, *scales)
    return parts[0] if config.splits == 1 else jnp.sum(parts, axis=0).astype(out_dtype)


def _second_pair(config: Config) -> tuple[Any, ...]:
    """What a second pair of consumers needs beside: its sums, and the barriers of handing them over."""
    if config.pairs == 1:
        return ()
    sums = plgpu.SMEM((CONSUMERS, TILE_ROWS, config.tile_m), jnp.float32)
    return (sums, *[plgpu.Barrier(num_arrivals=1, num_barriers=CONSUMERS)] * 2)


def _check_operands(name: str, activation_bits: int, b: Any) -> None:
    if not isinstance(b, ShuffledWeights):
        raise UnsupportedError(
            name,
            {"b": type(b).__name__},
            "is not in the order of wgmma's fragments",
            f"pass narrowgemm.shuffle_weights(b, {activation_bits}), made once, off-line",
        )
    if b.activation_bits != activation_bits:
        raise UnsupportedError(
            name,
            {"activation_bits of b": b.activation_bits},
            f"were shuffled for other activations than these of {activation_bits} bits",
            f"shuffle the weights with activation_bits={activation_bits}",
        )


class _Weights:
    """What the kernel knows of its weights when it is compiled: how a tile becomes arrays."""

    def __init__(self, b: ShuffledWeights) -> None:
        spec = b.spec
        assert spec.block is not None
        self.is_fp8 = b.activation_bits == 8
        self.placement = placement_of(spec, b.activation_bits)
        blocks = TILE_K // spec.block
        convert = fragments_fp8 if self.is_fp8 else fragments_bf16
        self.load: Callable[[Any], tuple[list[Any], list[Any]]] = functools.partial(
            _wgmma_weights.load_weights,
            planes=spec.element.bits // 2,
            scale_words=2 * blocks // 4,
            columns=32 if self.is_fp8 else 64,
            element=E4M3 if self.is_fp8 else jnp.bfloat16,
            count=blocks if self.is_fp8 else 2,
            scales=blocks if self.is_fp8 else 0,
            convert=functools.partial(convert, spec=spec, placement=self.placement),
        )

        self.values: Callable[[Any], jax.Array] = functools.partial(
            _values, format_name=b.format, activation_bits=b.activation_bits
        )

    @property
    def unit(self) -> float:
        """What the sum of products lacks: of FP8 the weights' power of two; BF16 has had it."""
        return 2.0**self.placement.exponent if self.is_fp8 else 1.0


def _values(tile: Any, format_name: str, activation_bits: int) -> jax.Array:
    """The tile as the interpreter takes it: its values (64, 128), FP32."""
    alone = ShuffledWeights(tile[...][None, None], None, format_name, activation_bits, (TILE_ROWS, TILE_K))
    return dequantize(unshuffle_weights(alone))


def _body(  # noqa: C901 (the device code of one kernel; its closures are its phases)
    tiles_gmem: Any,
    a_gmem: Any,
    a_scale_gmem: Any,
    b_scale_gmem: Any,
    out_gmem: Any,
    packed_smem: Any,
    a_buffer: Any,
    out_smem: Any,
    full: Any,
    empty: Any,
    *second_pair: Any,
    config: Config,
    pieces: tuple[int, int, int],
    weights: _Weights,
    box: int,
    interpret: bool,
) -> None:
    """The kernel of one thread block; `pieces` counts tiles of C in M and in N, and parts of K."""
    a_tma, a_smem = _mosaic_gpu.views(a_buffer, interpret)
    boxes = TILE_K // box
    k_steps = tiles_gmem.shape[1]
    role = lax.axis_index("role")
    consumers = config.pairs * CONSUMERS
    half, pair = (role, jnp.int32(0)) if config.pairs == 1 else (lax.rem(role, CONSUMERS), role // CONSUMERS)

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def full_of(slot: jax.Array, i: jax.Array) -> Any:
        """The barrier of step number i of a piece, in its stage."""
        return full.at[slot if config.pairs == 1 else slot + lax.rem(i, config.pairs) * config.stages]

    def steps_of_pair(steps: jax.Array) -> jax.Array:
        return steps if config.pairs == 1 else (steps + config.pairs - 1 - pair) // config.pairs

    def for_each_piece(visit: Callable[..., None]) -> jax.Array:
        """Call visit(steps done, tile in M, tile in N, part, its first step, its steps); return the steps in all."""

        @plgpu.nd_loop((pieces[0] * pieces[1] * pieces[2],), collective_axes="blocks", init_carry=jnp.int32(0))
        def steps_done(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
            tile_m, tile_n, part = piece(loop.index[0], pieces)
            first, steps = steps_of_part(part, config.splits, k_steps)
            visit(carry, tile_m, tile_n, part, first, steps)
            done: jax.Array = carry + steps
            return done

        total: jax.Array = steps_done
        return total

    @pl.when(role == consumers)
    def _produce() -> None:
        plgpu.set_max_registers(REGISTERS[consumers][1], action="decrease")

        def load_piece(done: Any, tile_m: Any, tile_n: Any, _: Any, first: Any, steps: Any) -> None:
            @pl.loop(0, steps)
            def _load(i: jax.Array) -> None:
                slot, k_step = stage_of(done + i), first + i
                pl.when(done + i >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                source = tiles_gmem.at[pl.ds(tile_n * CONSUMERS, CONSUMERS), k_step]
                plgpu.copy_gmem_to_smem(source, packed_smem.at[slot], full_of(slot, i))
                for j in range(boxes):
                    rows, columns = pl.ds(tile_m * config.tile_m, config.tile_m), pl.ds(k_step * TILE_K + j * box, box)
                    plgpu.copy_gmem_to_smem(a_gmem.at[rows, columns], a_tma.at[slot * boxes + j], full_of(slot, i))

        steps = for_each_piece(load_piece)

        @pl.loop(jnp.maximum(steps - config.stages, 0), steps)
        def _drain(step: jax.Array) -> None:
            plgpu.barrier_wait(empty.at[stage_of(step)])

    @pl.when(role < consumers)
    def _consume() -> None:  # noqa: C901 (as its kernel)
        plgpu.set_max_registers(REGISTERS[consumers][0], action="increase")
        scale = a_scale_gmem[0] * b_scale_gmem[0] * jnp.float32(1.0 if interpret else weights.unit)
        shape = (TILE_ROWS, config.tile_m)
        accumulator = plgpu.WGMMAAccumulatorRef(shape, jnp.float32)

        def next_stage(done: jax.Array, turn: jax.Array) -> jax.Array:
            """The stage of this pair's step number `turn` of a piece, once it is full."""
            i = turn if config.pairs == 1 else turn * config.pairs + pair
            slot = stage_of(done + i)
            plgpu.barrier_wait(full_of(slot, i))
            return slot

        def release(slot: jax.Array) -> None:
            # Threads have read the packed words, and TMA, another proxy, writes them next: a fence goes between.
            plgpu.commit_smem()
            plgpu.barrier_arrive(empty.at[slot])

        def store(result: jax.Array, tile_m: jax.Array, tile_n: jax.Array, part: jax.Array) -> None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            scaled = (result * scale).astype(out_smem.dtype)
            _wgmma_weights.store_transposed(scaled, out_smem.at[half], interpret)
            plgpu.commit_smem()
            rows = pl.ds(tile_m * config.tile_m, config.tile_m)
            columns = pl.ds((tile_n * CONSUMERS + half) * TILE_ROWS, TILE_ROWS)
            plgpu.copy_smem_to_gmem(out_smem.at[half], out_gmem.at[part, rows, columns])

        def multiply_bf16(done: jax.Array, steps: jax.Array) -> jax.Array:
            def accumulate(acc: Any) -> Any:
                @pl.loop(0, steps_of_pair(steps))
                def _multiply(turn: jax.Array) -> None:
                    slot = next_stage(done, turn)
                    arrays, _ = weights.load(packed_smem.at[slot, half])
                    for j, array in enumerate(arrays):
                        plgpu.wgmma(acc, array, a_smem.at[slot * boxes + j].T)
                    plgpu.wgmma_wait(0)
                    release(slot)

                return acc[...]

            result: jax.Array = pl.run_scoped(accumulate, accumulator)
            return result

        def multiply_fp8(done: jax.Array, steps: jax.Array) -> jax.Array:
            together = max(1, IN_FLIGHT_REGISTERS[config.pairs] // (config.tile_m // 2))

            def promoted(total: jax.Array, slot: jax.Array, arrays: list[Any], scales: list[Any], first: int) -> Any:
                """The total, and blocks from `first` on, each multiplied by its rows' scales."""
                blocks = range(first, min(first + together, len(arrays)))

                def accumulate(*parts: Any) -> Any:
                    for block, part in zip(blocks, parts, strict=True):
                        j = block * boxes // len(arrays)
                        plgpu.wgmma(part, arrays[block], a_smem.at[slot * boxes + j].T)
                    results = [plgpu.wgmma_accumulator_load(part) for part in parts]
                    return _wgmma_weights.add_scaled(total, results, [scales[block] for block in blocks])

                return pl.run_scoped(accumulate, *[accumulator] * len(blocks))

            def step(turn: jax.Array, total: jax.Array) -> jax.Array:
                slot = next_stage(done, turn)
                arrays, scales = weights.load(packed_smem.at[slot, half])
                for first in range(0, len(arrays), together):
                    total = promoted(total, slot, arrays, scales, first)
                release(slot)
                return total

            zeros = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)
            result: jax.Array = lax.fori_loop(0, steps_of_pair(steps), step, zeros)
            return result

        def multiply_values(done: jax.Array, steps: jax.Array) -> jax.Array:
            def step(turn: jax.Array, total: jax.Array) -> jax.Array:
                slot = next_stage(done, turn)
                values = weights.values(packed_smem.at[slot, half])
                for j in range(boxes):
                    a_part = a_smem[slot * boxes + j].astype(jnp.float32)
                    total += values[:, j * box : (j + 1) * box] @ a_part.T
                release(slot)
                return total

            result: jax.Array = lax.fori_loop(0, steps_of_pair(steps), step, jnp.zeros(shape, jnp.float32))
            return result

        def compute(done: Any, tile_m: Any, tile_n: Any, part: Any, _: Any, steps: Any) -> None:
            multiply = multiply_fp8 if weights.is_fp8 else multiply_bf16
            result = (multiply_values if interpret else multiply)(done, steps)
            if config.pairs == 1:
                store(result, tile_m, tile_n, part)
                return
            sums, handed, taken = (each.at[half] for each in second_pair)
            finish = functools.partial(store, tile_m=tile_m, tile_n=tile_n, part=part)
            _hopper_sums.sum_of_pairs(result, pair, done > 0, (sums, handed, taken), finish, interpret)

        for_each_piece(compute)
        if second_pair:
            _, _, taken = second_pair
            pl.when(pair == 1)(lambda: plgpu.barrier_wait(taken.at[half]))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
