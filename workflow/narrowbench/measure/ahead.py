"""Launches compiled side by side: on threads of this process, or in processes that never touch the device.

Lowering a Pallas kernel is Python, which the threads of a process do by turns. Processes compile for a GPU of the same
kind, as `narrowgemm.aot` does for one that is not there, and what they hand back is loaded here.

JAX reads its environment when it is imported, and a process gets it with its first task: so nothing here imports JAX
before that.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from narrowbench.measure.devices import LocalDevice
from narrowgemm.aot import abstract_on, device_of, environment_for
from narrowgemm.errors import UnsupportedError
from narrowgemm.problem import GemmProblem
from narrowgemm.targets import TARGETS, GpuTarget, target_named

if TYPE_CHECKING:
    from narrowbench.measure.launches import Platform


class Pending:
    """A launch that is being compiled."""

    def __init__(self, future: Future[Any], load: Callable[[Any], Callable[..., Any]]) -> None:
        self.future = future
        self._load = load

    @cached_property
    def function(self) -> Callable[..., Any]:
        """As `compile_launch` gives it, once it is there. Raises what compiling or loading it raised."""
        return self._load(self.future.result())


@dataclass(frozen=True)
class Compilers:
    """A pool that compiles so many launches at once; `target`: what its processes compile for, None for threads."""

    pool: Executor
    at_once: int
    target: str | None

    def begin(
        self, kernel: Any, config: Any, out_format: str, operands: tuple[Any, ...], platform: "Platform"
    ) -> Pending:
        """A launch of `kernel` on plain arrays, the leaves of `operands`, which are abstract."""
        if self.target is not None:
            elsewhere = self.pool.submit(_compiled_elsewhere, kernel.name, config, out_format, operands, self.target)
            return Pending(elsewhere, lambda payload: loaded(payload, operands))
        here = self.pool.submit(_compiled_here, kernel, config, out_format, operands, platform)
        return Pending(here, lambda function: function)


@contextmanager
def compilers(device: LocalDevice, threads: int, processes: int | None = None) -> Iterator[Compilers]:
    """On threads, or in processes where a number of them is given.

    Raises UnsupportedError for processes where nothing can be compiled for the device's kind without the device.
    """
    if processes is None:
        with ThreadPoolExecutor(threads) as pool:
            yield Compilers(pool, threads, None)
        return
    target = _target_of(device)
    # Another process with a context on the GPU would be told as one that shares it.
    environment = environment_for(target_named(target), reads_code=False) | {"CUDA_VISIBLE_DEVICES": ""}
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (environment,)) as pool:
        yield Compilers(pool, processes, target)


def wait_for(pending: Iterable[Pending]) -> None:
    """Until each is compiled or has failed. Raises BrokenProcessPool where a process died: none goes on after that."""
    done, _ = wait([one.future for one in pending])
    for future in done:
        if isinstance(error := future.exception(), BrokenProcessPool):
            raise error


def launch_shapes(kernel: Any, problem: GemmProblem) -> tuple[Any, Any]:
    """Operands as a launch of the kernel takes them, of abstract arrays."""
    import jax

    from narrowbench.measure.operands import operand_shapes

    a, b = operand_shapes(problem)
    return a, jax.eval_shape(kernel.prepared, b)


def serialised(function: Any) -> bytes:
    """A compiled function of plain arrays with one result, as `loaded` takes it."""
    from jax.experimental import serialize_executable

    payload: bytes = serialize_executable.serialize(function)[0]
    return payload


def loaded(payload: bytes, operands: tuple[Any, ...]) -> Callable[..., Any]:
    """What `serialised` gave, on this process's first device; its arguments are the leaves of `operands`."""
    import jax
    from jax.experimental import serialize_executable

    arguments = jax.tree.structure((tuple(jax.tree.leaves(operands)), {}))
    device = jax.devices()[0]
    function: Callable[..., Any] = serialize_executable.deserialize_and_load(
        payload, arguments, jax.tree.structure(0), backend=device.client, execution_devices=[device]
    )
    return function


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def _target_of(device: LocalDevice) -> str:
    names = {target.kind: name for name, target in TARGETS.items() if isinstance(target, GpuTarget)}
    if device.kind not in names:
        rule = f"is none of the GPUs that can be compiled for without them ({', '.join(names)})"
        raise UnsupportedError("compiling in processes", {"device": device.kind}, rule, "compile on threads")
    return names[device.kind]


def _compiled_here(
    kernel: Any, config: Any, out_format: str, operands: Any, platform: "Platform"
) -> Callable[..., Any]:
    from narrowbench.measure.gemm import launch_of
    from narrowbench.measure.launches import compile_launch

    return compile_launch(launch_of(kernel, config, out_format), operands, platform)


def _compiled_elsewhere(kernel_name: str, config: Any, out_format: str, operands: Any, target: str) -> bytes:
    """In a process of its own, with the environment of `environment_for`."""
    import jax

    from narrowgemm.gemm.registry import kernel_named

    device = device_of(target_named(target))
    with jax.default_device(device):
        placed = abstract_on(device, operands)
        return serialised(_compiled_here(kernel_named(kernel_name), config, out_format, placed, "cuda"))
