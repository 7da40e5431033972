"""Synthetic rows: plainly made up, from a two-roof model with seeded noise. They never leave the tests."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from narrowbench.report import frame as frames
from narrowbench.store.rows import GemmCase, Row
from narrowgemm.problem import GemmProblem

SQUARE = [(n, n, n) for n in (1024, 4096, 8192)]
DECODE = [(m, 8192, 8192) for m in (1, 64)]
FORMATS = {
    "xla_dot_f32": ("f32", "f32"),
    "xla_dot_bf16": ("bf16", "bf16"),
    "xla_dot_fp8_e4m3": ("fp8_e4m3", "fp8_e4m3"),
    "hopper_wgmma_bf16": ("bf16", "bf16"),
    "hopper_wgmma_fp8": ("fp8_e4m3", "fp8_e4m3"),
    "hopper_wgmma_w4a8": ("fp8_e4m3", "mxfp4"),
}
#: Of baselines that the synthetic devices did not measure.
OTHER_LIBRARIES = {
    "cublaslt_bf16": ("bf16", "bf16"),
    "cublaslt_fp8_e4m3": ("fp8_e4m3", "fp8_e4m3"),
    "torch_scaled_mm_fp8_e4m3": ("fp8_e4m3", "fp8_e4m3"),
    "triton_persistent_fp8_e4m3": ("fp8_e4m3", "fp8_e4m3"),
}
RATES = {"f32": 50e12, "bf16": 800e12, "fp8_e4m3": 1500e12}
HOPPER_CONFIG = {
    "tile_m": 128,
    "tile_n": 256,
    "stages": 4,
    "split": "m",
    "cluster_m": 1,
    "cluster_n": 1,
    "raster": "m",
    "raster_width": 8,
}
#: device -> (speed relative to RATES, bytes/s, meter, kernels)
DEVICES = {
    "nvidia-h200": (1.0, 4.2e12, "nvml", tuple(FORMATS)[1:]),
    "synthetic-cpu": (1e-3, 2e10, None, ("xla_dot_f32", "xla_dot_bf16")),
}


def _provenance(device: str) -> dict[str, Any]:
    return {
        "device": device,
        "device_kind": f"synthetic {device}",
        "device_uuid_hash": None,
        "host_hash": "synthetic",
        "git_commit": "0" * 40,
        "git_dirty": False,
        "sources_sha256": "1" * 64,
        "environment_sha256": "2" * 64,
        "versions": {"jax": "0.11.2", "driver": "synthetic"},
        "utc_time": "2026-01-02T03:04:05Z",
        "command": "synthetic",
    }


def _timing(time_s: float, rng: np.random.Generator, count: int = 12) -> dict[str, Any]:
    return {
        "samples_s": list(time_s * rng.normal(1.0, 0.01, count)),
        "launches_per_sample": [20] * count,
        "method": "cupti",
        "cross_check_reason": "synthetic",
        "warm_up_launches": 3,
        "rotation_sets": 2,
        "rotation_bytes": 200_000_000,
        "stop_rule": {
            "confidence": 0.95,
            "target_relative_half_width": 0.01,
            "min_samples": 10,
            "max_samples": 40,
            "budget_s": 30.0,
            "stopped_by": "interval",
        },
    }


def _energy(time_s: float, power_w: float, rng: np.random.Generator) -> dict[str, Any]:
    launches = int(5 / time_s)
    joules = [float(power_w * 5 * rng.normal(1.0, 0.005)) for _ in range(10)]
    windows = [{"window_s": 5.0, "launches": launches, "counter_j": j, "integrated_j": j * 1.01} for j in joules]
    return {
        "source": "counter",
        "meter": "nvml",
        "scope": "board",
        "windows": windows,
        "idle_w": 75.0,
        "gain_error_relative": 0.05,
    }


def _spread(value: float) -> dict[str, Any]:
    return {"min": 0.95 * value, "median": value, "max": 1.02 * value, "count": 100}


def _measured(device: str, case: dict[str, Any], time_s: float, power_w: float, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    meter = DEVICES[device][2] if case["mode"] == "sustained" else None
    return {
        "case": case,
        "evidence": "measured",
        "status": "ok",
        "timing": _timing(time_s, rng),
        "energy": _energy(time_s, power_w, rng) if meter else None,
        "energy_reason": None if meter else "synthetic: no meter",
        "clocks": {
            "sm_hz": _spread(1.4e9 if case["mode"] == "sustained" else 1.9e9),
            "memory_hz": None,
            "temperature_c": _spread(60),
            "power_w": _spread(power_w),
            "power_limit_w": 700.0,
            "throttle_reasons": {"sw_power_cap": 0.9},
        },
        "provenance": _provenance(device),
    }


def gemm_row(
    kernel: str = "hopper_wgmma_fp8",
    shape: tuple[int, int, int] = (8192, 8192, 8192),
    device: str = "nvidia-h200",
    mode: str = "burst",
    distribution: str = "normal",
    suite: str = "square",
    seed: int = 1,
    groups: dict[str, Any] | None = None,
    **changes: Any,
) -> Row:
    """A measured row whose time is that of the slower roof, a little more in sustained mode."""
    a_format, b_format = (FORMATS | OTHER_LIBRARIES)[kernel]
    m, n, k = shape
    speed, bandwidth, _, _ = DEVICES[device]
    problem = GemmProblem(m, n, k, a_format, b_format)
    slowdown = {"burst": 1.0, "sustained": 1.18}[mode] * {"zeros": 0.85, "small_integers": 0.95}.get(distribution, 1.0)
    slowdown *= 1.03 if kernel.startswith("xla") else 1.0
    case = {
        "kind": "gemm",
        "kernel": kernel,
        "suite": suite,
        **dict(zip("mnk", shape, strict=True)),
        "a_format": a_format,
        "b_format": b_format,
        "out_format": "bf16",
        "distribution": distribution,
        "seed": 0,
        "mode": mode,
        "cache": "rotated",
        "groups": groups,
    }
    least_bytes = GemmCase.model_validate(case).least_bytes
    time_s = slowdown * max(problem.flop / (0.95 * RATES[a_format] * speed), least_bytes / (0.9 * bandwidth))
    record = _measured(device, case, time_s, {"zeros": 426.0}.get(distribution, 690.0), seed)
    record["accuracy"] = {
        "kernel_error": 1.1e-3,
        "kernel_error_max": 8e-3,
        "tolerance": 4e-3,
        "format_error": {"f32": 0.0, "bf16": 2e-3, "fp8_e4m3": 3.7e-2}[a_format],
        "checked_rows": m,
        "poisoned": True,
    }
    record["compile"] = {"hlo_calls": [f"__synthetic${kernel}"], "upcast": False}
    record["config"] = HOPPER_CONFIG if kernel.startswith("hopper") else None
    return Row.model_validate(record | changes)


def roof_row(quantity: str, work: int, time_s: float, roof_format: str | None = None, **where: str) -> Row:
    """A measured roof of a device."""
    case = {"kind": "roof", "quantity": quantity, "format": roof_format, "work": work, "mode": where["mode"]}
    case["distribution"] = where.get("data", "normal") if quantity == "flop" else None
    return Row.model_validate(_measured(where["device"], case, time_s, 690.0, 7))


def compiled_row(kernel: str = "hopper_wgmma_fp8") -> Row:
    """A row of evidence `compiled`: resources, no time."""
    record = gemm_row(kernel).model_dump()
    nothing = dict.fromkeys(("timing", "energy", "energy_reason", "clocks", "clocks_reason", "accuracy"))
    resources = {"hlo_calls": [], "upcast": None, "registers": 168, "spill_bytes": 0, "target": "sm_90a"}
    resources["instructions"] = {"QGMMA.64x256x32.F32.E4M3.E4M3": 4, "UTMALDG.2D": 2, "UTMASTG.2D": 4}
    case = {
        key: record["case"][key] for key in ("kernel", "suite", "m", "n", "k", "a_format", "b_format", "out_format")
    }
    config = {"stages": 4}
    changes = {"case": case | {"kind": "compile", "config": config}, "config": config, "compile": resources}
    return Row.model_validate(record | nothing | {"evidence": "compiled"} | changes)


def space_row(kernel: str = "hopper_wgmma_fp8") -> Row:
    """Three configs of a search space: one compiled, one that spills, and one refused."""
    record = compiled_row(kernel).model_dump()
    case = {name: value for name, value in record["case"].items() if name != "config"}
    resources = {"registers": 168, "spill_bytes": 0, "shared_memory_bytes": 200_000, "tensor_memory_columns": 0}
    compiled = resources | {"code_bytes": 9000, "compile_s": 1.5, "multiplies": {"QGMMA.64x256x32": 4, "HGMMA": 1}}
    compiled |= {"config": {"stages": 4}, "status": "ok", "reason": None}
    spilt = compiled | {"spill_bytes": 8, "registers": 255, "compile_s": 2.0, "multiplies": {"QGMMA.64x256x32": 8}}
    refused = dict.fromkeys(compiled) | {"config": {"stages": 9}, "status": "unsupported", "reason": "synthetic"}
    changes = {"case": case | {"kind": "space", "first": 0, "count": 3}, "config": None, "compile": None}
    return Row.model_validate(record | changes | {"space": {"target": "sm_90a", "configs": [compiled, spilt, refused]}})


def counters_row(kernel: str = "hopper_wgmma_fp8") -> Row:
    """A launch that a profiler counted, and timed nothing of."""
    record = gemm_row(kernel).model_dump()
    nothing = dict.fromkeys(("timing", "energy", "energy_reason", "clocks", "clocks_reason"))
    names = ("kernel", "m", "n", "k", "a_format", "b_format", "out_format", "distribution", "seed")
    case = {name: record["case"][name] for name in names} | {"kind": "counters", "config": None}
    known = {"dram__bytes_read.sum": (250e6, "byte"), "dram__bytes_write.sum": (134.2, "Mbyte")}
    known |= {"lts__t_sectors_srcunit_tex_op_read.sum": (201_326_592, "sector")}
    known |= {"lts__t_sector_hit_rate.pct": (85.0, "%")}
    figures = {name: {"value": value, "unit": unit} for name, (value, unit) in known.items()}
    counters = {
        "kernels": [{"name": kernel, "metrics": figures}],
        "missing": {"sm__cycles_elapsed.max": "synthetic"},
        "cache_control": "all",
        "clock_control": "none",
    }
    return Row.model_validate(record | nothing | {"case": case, "counters": counters})


def repeated_row() -> Row:
    """A sustained case that was measured a second time."""
    row = gemm_row(mode="sustained", seed=2)
    another_day = row.provenance.model_copy(update={"utc_time": "2026-01-03T03:04:05Z"})
    return row.model_copy(update={"case": row.case.model_copy(update={"repeat": 2}), "provenance": another_day})


def finished_row(kernel: str, epilogue: str = "scales_bias_gelu", slower: float = 1.0) -> Row:
    """A GEMM with an epilogue, in so many times a plain one's time."""
    record = gemm_row(kernel).model_dump()
    record["case"]["epilogue"] = epilogue
    record["timing"]["samples_s"] = [slower * seconds for seconds in record["timing"]["samples_s"]]
    return Row.model_validate(record)


def group_rows() -> Iterator[Row]:
    """Many products in one launch by a kernel and its baseline; of the M, N, K of `SQUARE` some."""
    for kernel in ("xla_dot_fp8_e4m3", "hopper_wgmma_fp8"):
        yield gemm_row(kernel, (8192, 4096, 7168), suite="moe", groups={"count": 32, "kind": "ragged"})
        yield gemm_row(kernel, (8192, 4096, 7168), suite="moe", groups={"count": 32, "kind": "equal"})
        yield gemm_row(kernel, SQUARE[-1], suite="moe", groups={"count": 8, "kind": "batched"})


def unsupported_row() -> Row:
    """A case that its kernel cannot do."""
    changes: dict[str, Any] = dict.fromkeys(("timing", "energy", "energy_reason", "clocks", "accuracy", "compile"))
    return gemm_row(shape=(100, 100, 100), status="unsupported", reason="synthetic: k=100 is too odd", **changes)


def device_rows(device: str) -> Iterator[Row]:
    """Every kernel of the device on every shape, in both modes, and its roofs."""
    speed, bandwidth, _, kernels = DEVICES[device]
    for mode in ("burst", "sustained"):
        where = {"device": device, "mode": mode}
        held = {"burst": 1.0, "sustained": 0.84}[mode]
        for quantity in ("read", "copy"):
            yield roof_row(quantity, 10**9, 1e9 / bandwidth, **where)
        for name in {FORMATS[kernel][0] for kernel in kernels}:
            yield roof_row("flop", 10**12, 1e12 / (RATES[name] * speed * held), name, **where)
            if device == "nvidia-h200":
                yield roof_row("flop", 10**12, 1e12 / (RATES[name] * 1.1), name, data="zeros", **where)
        for seed, (kernel, (shape, suite)) in enumerate(product(kernels, _shapes())):
            yield gemm_row(kernel, shape, device, mode, suite=suite, seed=seed)
    for kernel, data in product(kernels, ("zeros", "uniform", "small_integers")):
        yield gemm_row(kernel, SQUARE[-1], device, "sustained", data)
    if device == "nvidia-h200":
        yield gemm_row("hopper_wgmma_fp8", SQUARE[-1], device, "sustained", "normal_k_ordered")


def _shapes() -> Iterator[tuple[tuple[int, int, int], str]]:
    yield from ((shape, "square") for shape in SQUARE)
    yield from ((shape, "llm_decode") for shape in DECODE)


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """Rows of every kind: two devices, both modes, roofs, an unsupported case, epilogues, groups, other evidence."""
    others = [unsupported_row(), compiled_row(), space_row(), counters_row(), repeated_row()]
    others += [finished_row(kernel) for kernel in ("hopper_wgmma_fp8", "xla_dot_fp8_e4m3")]
    others += group_rows()
    return [*device_rows("nvidia-h200"), *device_rows("synthetic-cpu"), *others]


@pytest.fixture(scope="session")
def frame(rows: list[Row]) -> pd.DataFrame:
    """The synthetic rows as the record's frame."""
    return frames.collect(rows, "record")


@pytest.fixture(scope="session")
def empty_frame() -> pd.DataFrame:
    """A frame without a row."""
    return frames.collect([], "record")


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    """`gemm_row`, for a test that needs one of its own."""
    return gemm_row


@pytest.fixture(scope="session")
def make_counters_row() -> Callable[..., Row]:
    """`counters_row`, of another kernel."""
    return counters_row


@pytest.fixture(scope="session")
def make_finished_row() -> Callable[..., Row]:
    """`finished_row`, of another kernel or epilogue."""
    return finished_row
