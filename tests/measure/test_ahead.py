"""Launches compiled on threads and in processes: what comes back, and what becomes of faults."""

import os
import signal
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from narrowbench.measure.ahead import compilers, launch_shapes, loaded, serialised, wait_for
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.launches import compile_launch
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

FP8 = GemmProblem(128, 256, 512, "fp8_e4m3", "fp8_e4m3", "bf16")


@pytest.fixture
def h200(cpu: LocalDevice) -> LocalDevice:
    return replace(cpu, kind="NVIDIA H200", platform="cuda")


def test_what_one_process_compiled_another_loads_and_runs() -> None:
    """On this CPU, where both can run it; operands are taken apart, quantised ones too."""
    kernel = kernel_named("xla_dot_fp8_e4m3")
    shapes = launch_shapes(kernel, FP8)

    def launch(a: Any, b: Any) -> jax.Array:
        return jnp.matmul(a.codes.astype(jnp.float32), b.codes.T.astype(jnp.float32))

    function = loaded(serialised(compile_launch(launch, shapes, "cpu")), shapes)
    rng = np.random.default_rng(5)
    a, b = (jnp.asarray(rng.integers(-4, 5, shape), jnp.float8_e4m3fn) for shape in ((128, 512), (256, 512)))
    of_shape = {a.shape: a, b.shape: b, (): jnp.float32(1)}
    leaves = [of_shape[leaf.shape] for leaf in jax.tree.leaves(shapes)]
    np.testing.assert_array_equal(function(*leaves), np.asarray(a, np.float64) @ np.asarray(b, np.float64).T)


def test_processes_hand_back_machine_code_for_a_gpu_that_they_do_not_have(h200: LocalDevice) -> None:
    kernel = kernel_named("hopper_wgmma_fp8")
    config, operands = kernel.candidates(FP8)[0], launch_shapes(kernel, FP8)
    with compilers(h200, 1, 2) as side_by_side:
        good = side_by_side.begin(kernel, config, "bf16", operands, h200.platform)
        refused = side_by_side.begin(kernel, replace(config, tile_m=100), "bf16", operands, h200.platform)
        wait_for([good, refused])
    assert side_by_side.at_once == 2
    assert b"\x7fELF" in good.future.result()
    assert b"hopper_wgmma_fp8" in good.future.result()
    with pytest.raises(UnsupportedError, match="tile_m=100"):
        _ = refused.function
    # It is code for another device than the one that is here.
    with pytest.raises(jax.errors.JaxRuntimeError):
        _ = good.function


def test_a_process_that_dies_is_told_and_ends_the_search(h200: LocalDevice) -> None:
    kernel = kernel_named("hopper_wgmma_fp8")
    with compilers(h200, 1, 1) as side_by_side:
        config, operands = kernel.candidates(FP8)[0], launch_shapes(kernel, FP8)
        pending = side_by_side.begin(kernel, config, "bf16", operands, h200.platform)
        (process,) = side_by_side.pool._processes.values()  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            wait_for([pending])


def test_a_kind_that_cannot_be_compiled_for_elsewhere_is_refused(cpu: LocalDevice) -> None:
    refused = pytest.raises(UnsupportedError, match=r"none of the GPUs .*NVIDIA H200.*; compile on threads")
    with refused, compilers(cpu, 1, 2):
        pass


def test_threads_give_the_function_and_keep_it(cpu: LocalDevice) -> None:
    kernel, problem = kernel_named("xla_dot_f32"), GemmProblem(8, 16, 32, "f32", "f32", "f32")
    with compilers(cpu, 2) as by_threads:
        operands = launch_shapes(kernel, problem)
        pending = by_threads.begin(kernel, kernel.candidates(problem)[0], "f32", operands, cpu.platform)
        wait_for([pending])
    assert (by_threads.at_once, pending.function) == (2, pending.function)
    a, b = np.ones((8, 32), np.float32), np.ones((16, 32), np.float32)
    leaves = [a if leaf.shape == a.shape else b for leaf in jax.tree.leaves(operands)]
    np.testing.assert_array_equal(pending.function(*leaves), np.full((8, 16), 32.0))
