import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from narrowbench.config import ROOT
from narrowbench.store.rows import GemmCase, Provenance, RoofCase, Row

# The first example of a property compiles; no time is asserted anywhere. Examples are the same in each run, so that a
# change is judged by what it changes; `pytest --hypothesis-profile explore` draws new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("suite")

# The GPU interpreter needs a thread of JAX's CPU client for each warp of a block, whatever the machine has.
os.environ.setdefault("NPROC", "16")

#: Child processes of a test run this checkout too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "kernels"), str(ROOT / "workflow")])
# The tests are of this machine's CPU; whatever needs a GPU compiles for it or is interpreted.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

_TIMING: dict[str, Any] = {
    "samples_s": [1.0e-3, 1.1e-3, 1.2e-3, 1.0e-3, 1.05e-3, 1.15e-3],
    "launches_per_sample": [20] * 6,
    "method": "wall_clock",
    "cross_check_reason": "there is only one clock",
    "warm_up_launches": 3,
    "rotation_sets": 2,
    "rotation_bytes": 1024,
    "stop_rule": {
        "confidence": 0.95,
        "target_relative_half_width": 0.01,
        "min_samples": 6,
        "max_samples": 6,
        "budget_s": 1.0,
        "stopped_by": "max_samples",
    },
}

_ACCURACY: dict[str, Any] = {
    "kernel_error": 1e-7,
    "kernel_error_max": 1e-6,
    "tolerance": 1e-5,
    "format_error": 0.0,
    "checked_rows": 128,
    "poisoned": True,
}


_FP8_PROBLEM: dict[str, Any] = {
    "m": 128,
    "n": 128,
    "k": 128,
    "a_format": "fp8_e4m3",
    "b_format": "fp8_e4m3",
    "out_format": "bf16",
}


def _provenance(**changes: Any) -> Provenance:
    known: dict[str, Any] = {
        "device": "cpu-test",
        "device_kind": "A CPU of the tests",
        "device_uuid_hash": None,
        "host_hash": "0" * 16,
        "git_commit": "1" * 40,
        "git_dirty": False,
        "sources_sha256": "2" * 64,
        "kernel_sha256": None,
        "environment_sha256": "3" * 64,
        "versions": {"jax": "0.11.2"},
        "utc_time": "2026-01-01T00:00:00Z",
        "command": "narrowbench measure",
    }
    return Provenance.model_validate(known | {k: v for k, v in changes.items() if k in known})


@pytest.fixture
def make_row() -> Callable[..., Row]:
    """A function that makes a measured, ok row of a GEMM; its keywords change fields of case and provenance."""

    def make(**changes: Any) -> Row:
        case: dict[str, Any] = {
            "kernel": "xla_dot_f32",
            "suite": "smoke",
            "m": 128,
            "n": 128,
            "k": 128,
            "a_format": "f32",
            "b_format": "f32",
            "out_format": "f32",
            "distribution": "normal",
            "seed": 0,
            "mode": "burst",
            "cache": "rotated",
        }
        case |= {k: v for k, v in changes.items() if k in case}
        return Row.model_validate(
            {
                "case": GemmCase.model_validate(case),
                "evidence": "measured",
                "status": "ok",
                "timing": _TIMING,
                "energy_reason": "no meter in the tests",
                "clocks_reason": "no clock in the tests",
                "accuracy": _ACCURACY,
                "provenance": _provenance(**changes),
            }
        )  # fmt: skip

    return make


@pytest.fixture
def make_roof_row() -> Callable[..., Row]:
    """A function that makes a measured, ok row of a roof; its keywords change fields of case and provenance."""

    def make(**changes: Any) -> Row:
        case: dict[str, Any] = {"quantity": "read", "format": None, "work": 1 << 20, "mode": "burst"}
        case |= {k: v for k, v in changes.items() if k in case}
        return Row.model_validate(
            {
                "case": RoofCase.model_validate(case),
                "evidence": "measured",
                "status": "ok",
                "timing": _TIMING,
                "energy_reason": "no meter in the tests",
                "clocks_reason": "no clock in the tests",
                "provenance": _provenance(**changes),
            }
        )

    return make


@pytest.fixture
def make_tuning_row() -> Callable[..., Row]:
    """A function that makes the row of a search over two configs; its keywords change fields of case and provenance."""

    def make(**changes: Any) -> Row:
        case: dict[str, Any] = {
            "kind": "tuning",
            "kernel": "hopper_wgmma_fp8",
            "suite": "smoke",
            **_FP8_PROBLEM,
            "distribution": "normal",
            "seed": 0,
            "top": None,
        }
        case |= {k: v for k, v in changes.items() if k in case}
        best = {"config": {"tile_m": 128}, "rank": 1, "status": "ok", "reason": None, "time_s": 1e-3, "final_s": 1e-3}
        other = best | {"config": {"tile_m": 64}, "rank": 0, "time_s": 2e-3, "final_s": None}
        return Row.model_validate(
            {
                "case": case,
                "config": best["config"],
                "evidence": "measured",
                "status": "ok",
                "timing": _TIMING,
                "energy_reason": "no meter in the tests",
                "clocks_reason": "no clock in the tests",
                "accuracy": _ACCURACY,
                "tuning": {
                    "trials": [best, other],
                    "wall_s": 1.0,
                    "compile_threads": 2,
                    "protocol_sha256": "4" * 64,
                },
                "provenance": _provenance(**changes),
            }
        )

    return make


@pytest.fixture
def make_counters_row() -> Callable[..., Row]:
    """A function that makes the row of a launch that was counted; its keywords change fields of case and provenance."""

    def make(**changes: Any) -> Row:
        case: dict[str, Any] = {
            "kind": "counters",
            "kernel": "hopper_wgmma_fp8",
            **_FP8_PROBLEM,
            "distribution": "normal",
            "seed": 0,
            "config": None,
        }
        case |= {k: v for k, v in changes.items() if k in case}
        read = {"dram__bytes_read.sum": {"value": 32768.0, "unit": "byte"}}
        return Row.model_validate(
            {
                "case": case,
                "config": {"tile_m": 128},
                "evidence": "measured",
                "status": "ok",
                "accuracy": _ACCURACY,
                "counters": {
                    "kernels": [{"name": "hopper_wgmma_fp8", "metrics": read}],
                    "missing": {},
                    "cache_control": "all",
                    "clock_control": "none",
                },
                "provenance": _provenance(**changes),
            }
        )

    return make


@pytest.fixture
def make_space_row() -> Callable[..., Row]:
    """A function that makes the row of a space of one config; its keywords change fields of case and provenance."""

    def make(**changes: Any) -> Row:
        case: dict[str, Any] = {
            "kind": "space",
            "kernel": "hopper_wgmma_fp8",
            "suite": "compiled",
            **_FP8_PROBLEM,
            "first": 0,
            "count": 1,
        }
        case |= {k: v for k, v in changes.items() if k in case}
        config = {
            "config": {"tile_m": 128},
            "status": "ok",
            "reason": None,
            "registers": 168,
            "spill_bytes": 0,
            "shared_memory_bytes": 200_000,
            "tensor_memory_columns": 0,
            "code_bytes": 9000,
            "compile_s": 1.5,
            "multiplies": {"QGMMA": 4},
        }
        return Row.model_validate(
            {
                "case": case,
                "evidence": "compiled",
                "status": "ok",
                "space": {"target": "sm_90a", "configs": [config]},
                "provenance": _provenance(**changes),
            }
        )

    return make
