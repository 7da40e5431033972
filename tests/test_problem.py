from typing import Any

import pytest

from narrowgemm.problem import GemmProblem


def test_work_and_least_traffic_of_a_block_scaled_problem() -> None:
    problem = GemmProblem(m=16, n=32, k=64, a_format="bf16", b_format="nvfp4", out_format="f32")
    assert problem.flop == 2 * 16 * 32 * 64
    weights = 32 * 64 // 2 + 32 * 64 // 16 + 4
    assert problem.bytes == 16 * 64 * 2 + weights + 16 * 32 * 4
    assert problem.intensity_flop_per_byte == problem.flop / problem.bytes


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"m": 0}, "m=0 is not a whole number of at least 1"),
        ({"k": -4}, "k=-4 is not"),
        ({"n": 2.0}, "n=2.0 is not"),
        ({"n": True}, "n=True is not"),
        ({"a_format": "fp8_e4m4"}, "unknown format 'fp8_e4m4'; did you mean fp8_e4m3"),
        ({"b_format": "int4"}, "unknown format 'int4'"),
        ({"out_format": "mxfp8_e4m3"}, "unknown output format 'mxfp8_e4m3'; did you mean fp8_e4m3"),
    ],
)
def test_a_problem_that_is_none_is_refused(change: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"m": 1, "n": 1, "k": 1, "a_format": "f32", "b_format": "f32"}
    GemmProblem(**good)
    with pytest.raises(ValueError, match=text):
        GemmProblem(**good | change)
