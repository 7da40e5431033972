import jax
import numpy as np

import narrowgemm
from narrowgemm.gemm import oracle
from narrowgemm.gemm.hlo import summarize
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem


def test_it_is_right_and_its_program_says_that_it_widens() -> None:
    rng = np.random.default_rng(0)
    kernel = kernel_named("xla_widened_dot_fp8_block128")
    values = (rng.normal(size=(rows, 300)).astype(np.float32) for rows in (130, 200))
    a, b = (
        narrowgemm.quantize(x, name) for x, name in zip(values, (*kernel.a_formats, *kernel.b_formats), strict=True)
    )
    problem = GemmProblem(130, 200, 300, a.format, b.format)
    (config,) = kernel.candidates(problem)
    kernel.check(problem, config)
    run = jax.jit(lambda a, b: kernel.matmul(a, b, config, "bf16"))
    error, _ = oracle.errors(run(a, b), oracle.exact(a, b))
    assert 0 < error <= oracle.tolerance(problem)
    assert summarize(run.lower(a, b).compile().as_text(), operand_bits=8).upcast is True
