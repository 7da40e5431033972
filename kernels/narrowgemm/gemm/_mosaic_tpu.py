"""The one place that touches what JAX does not promise to keep of its Mosaic TPU back end."""

from typing import Any

from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import tpu as pltpu


def interpret_params(interpret: bool) -> Any:
    """What a kernel's `interpret` argument becomes: TPU interpret mode with race detection, or none."""
    return pltpu.InterpretParams(detect_races=True) if interpret else False


def races_found() -> bool:
    """Whether the kernel interpreted last had a data race. Raises RuntimeError if none was interpreted."""
    if interpreter.races is None:
        raise RuntimeError("no TPU kernel has been interpreted")
    return bool(interpreter.races.races_found)
