"""Folded weights as operands: never folded or unfolded on the way, no stacks, and a kernel of their own."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.gemm.test_hopper_folded import KERNEL, kernel_of

import narrowgemm
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.fold import FOLDINGS
from narrowgemm.gemm._hopper_folded_space import Config
from narrowgemm.gemm.registry import kernel_named


def test_weights_are_never_folded_or_unfolded_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowgemm.gemm.api.check_device", lambda _: None)
    q = narrowgemm.quantize(np.ones((64, 128), np.float32), "mxfp4")
    a = narrowgemm.quantize(np.ones((8, 128), np.float32), "fp8_e4m3")
    for b in (q, narrowgemm.shuffle_weights(q, 8)):
        with pytest.raises(UnsupportedError, match="fold_weights"):
            narrowgemm.gemm(a, b, kernel=KERNEL.name)
    folded = narrowgemm.fold_weights(q)
    with pytest.raises(UnsupportedError, match="shuffle_weights"):
        narrowgemm.gemm(a, folded, kernel="hopper_wgmma_w4a8")
    mx = narrowgemm.quantize(np.ones((8, 128), np.float32), "mxfp4")
    with pytest.raises(UnsupportedError, match="unfold_weights"):
        narrowgemm.gemm(mx, folded, kernel="blackwell_tcgen05_mxfp4")
    with pytest.raises(UnsupportedError, match="mxfp4"):
        narrowgemm.gemm(a, folded, kernel="hopper_wgmma_w6a8_folded")


@pytest.mark.parametrize("prepare", [narrowgemm.fold_weights, lambda q: narrowgemm.shuffle_weights(q, 8)])
def test_a_stack_of_prepared_weights_is_no_operand(monkeypatch: pytest.MonkeyPatch, prepare: Any) -> None:
    """A kernel would read the first and never know: what is static of a stack is what is static of one."""
    monkeypatch.setattr("narrowgemm.gemm.api.check_device", lambda _: None)
    prepared = prepare(narrowgemm.quantize(np.ones((64, 128), np.float32), "mxfp4"))
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), prepared)
    a = narrowgemm.quantize(np.ones((8, 128), np.float32), "fp8_e4m3")
    kernel = KERNEL.name if isinstance(stack, narrowgemm.FoldedWeights) else "hopper_wgmma_w4a8"
    with pytest.raises(ValueError, match=r"b does not hold what it says.*a stack goes through jax\.vmap"):
        narrowgemm.gemm(a, stack, kernel=kernel)


@pytest.mark.parametrize("fmt", FOLDINGS)
def test_without_a_kernel_named_folded_weights_have_their_own(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowgemm.gemm.api.check_device", lambda _: None)
    taken = []
    own = replace(kernel_of(fmt), matmul=lambda *given: taken.append(given[1:3]))
    monkeypatch.setattr(
        "narrowgemm.gemm.api.kernel_named", lambda name: own if name == own.name else kernel_named(name)
    )
    folded = narrowgemm.fold_weights(narrowgemm.quantize(np.ones((64, 128), np.float32), fmt))
    narrowgemm.gemm(narrowgemm.quantize(np.ones((8, 128), np.float32), "fp8_e4m3"), folded)
    assert [(b is folded, type(config)) for b, config in taken] == [(True, Config)]
