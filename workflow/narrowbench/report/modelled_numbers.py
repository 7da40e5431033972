"""Figures of the paper's text that are modelled, by name: no interval, for none of them was measured."""

from collections.abc import Iterator

from narrowbench.report.load import Material
from narrowbench.report.tab_tile_loads import DEVICE
from narrowbench.report.time_model import NEEDED_RUNS, TimeModel, absent_kernels, time_model
from narrowbench.report.units import number, quantity, rate_prefix

type Texts = Iterator[tuple[str, str]]


def texts(material: Material) -> Texts:
    """Names and texts; those of the time model's test only where there was one."""
    model = time_model(material)
    yield from _of_check(model)
    for launch in absent_kernels(material, model.coefficients):
        problem = launch.problem
        name = f"modelled/{launch.device}/{launch.kernel}/{problem.m}x{problem.n}x{problem.k}"
        yield f"{name}/time", quantity(launch.time.total_s, "s")
        yield f"{name}/rate", quantity(launch.rate_flop_per_s, "FLOP/s", exponent=rate_prefix(launch.rate_flop_per_s))
        yield f"{name}/of-sheet", f"{100 * launch.share:.3g} %"
        yield f"{name}/of-sheet/nominal", f"{100 * launch.most_share:.3g} %"
        yield f"{name}/binds", launch.time.bound
    for launch in absent_kernels(material, model.coefficients, leading_only=False):
        if launch.device == DEVICE:
            problem, traffic = launch.problem, launch.traffic
            blocks = launch.schedule.cores_per_unit
            name = f"modelled/{launch.device}/{launch.kernel}/{problem.m}x{problem.n}x{problem.k}/blocks-{blocks}"
            yield f"{name}/a-tile-loads", str(traffic.a_tile_loads)
            yield f"{name}/b-tile-loads", str(traffic.b_tile_loads)
            yield f"{name}/memory-loads", number(traffic.hbm_loads)


def _of_check(model: TimeModel) -> Texts:
    name = "time-model"
    yield f"{name}/runs", str(len(model.fitted) + len(model.tested))
    yield f"{name}/shapes", str(model.shapes)
    yield f"{name}/fitting", str(len(model.fitted))
    yield f"{name}/needed", str(NEEDED_RUNS)
    if model.check is not None:
        yield f"{name}/tested", str(len(model.tested))
        yield f"{name}/error", f"{100 * model.check.median_absolute:.1f} %"
        yield f"{name}/bias", f"{100 * model.check.bias:+.1f} %"
