"""Figures of the paper's text that are modelled, by name: no interval, for none of them was measured."""

from collections.abc import Iterator

from narrowbench.models.energy import FLOP, check_energy
from narrowbench.models.estimate import ESTIMATED_KEYS, Range, estimate, misses
from narrowbench.report.absent import absent_devices, assumptions_of
from narrowbench.report.energy_model import COEFFICIENTS, EnergyFit, energy_fit, in_words, metered_places
from narrowbench.report.held_roofs import held_places, held_points, leading
from narrowbench.report.load import Material
from narrowbench.report.tab_tile_loads import DEVICE
from narrowbench.report.time_model import NEEDED_RUNS, TimeModel, absent_kernels, time_model
from narrowbench.report.units import number, quantity, rate_prefix

type Texts = Iterator[tuple[str, str]]


def texts(material: Material) -> Texts:
    """Names and texts; those of the time model's test only where there was one."""
    model = time_model(material)
    yield from _of_check(model)
    yield from _of_roofs(material)
    for place in metered_places(material):
        yield from _of_energy(f"energy-model/{place.device}", energy_fit(material, place))
    yield from _of_estimates(material)
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


def _of_roofs(material: Material) -> Texts:
    """Roofs of the fastest sustained case of each rate's key, and which of them is the lowest."""
    for place in held_places(material):
        for key, point in leading(held_points(material, place)).items():
            name, roofs = f"{place.device}/sustained/three-roofs/{key}", point.roofs
            exponent = rate_prefix(roofs.arithmetic_flop_per_s)
            yield f"{name}/arithmetic", quantity(roofs.arithmetic_flop_per_s, "FLOP/s", exponent=exponent)
            if roofs.power_flop_per_s is not None:
                yield f"{name}/power", quantity(roofs.power_flop_per_s, "FLOP/s", exponent=exponent)
            yield f"{name}/rate", quantity(float(point.line.flop_per_s), "FLOP/s", exponent=exponent)
            yield f"{name}/clock", quantity(float(point.line.sm_clock_hz), "Hz")
            yield f"{name}/binds", point.binding


def _of_energy(name: str, fit: EnergyFit) -> Texts:
    """The energy model's test, its coefficients, and the GEMM that it misses most; nothing where it has no test."""
    if fit.model is None or fit.check is None:
        return
    yield f"{name}/fitting", str(fit.samples)
    yield f"{name}/tested", str(len(fit.tested))
    yield f"{name}/error", f"{100 * fit.check.median_absolute:.1f} %"
    yield f"{name}/bias", f"{100 * fit.check.bias:+.1f} %"
    gemms = {sample.name: sample for sample in (*fit.fitted, *fit.tested)}
    ((worst, error),) = check_energy(fit.model, list(gemms.values())).worst(1)
    m, n, k = gemms[worst].shape
    yield f"{name}/worst", f"{100 * error:+.0f} %"
    yield f"{name}/worst/kernel", str(gemms[worst].kernel)
    yield f"{name}/worst/shape", f"{m}×{n}×{k}"
    for key, (_, unit, scale) in COEFFICIENTS.items():
        if key in fit.model.coefficients:
            yield f"{name}/{key}", f"{in_words(fit.model.coefficients[key], scale)} {unit}"
    for key in fit.model.coefficients:
        if key.startswith(FLOP):
            yield f"{name}/{key}", f"{in_words(fit.model.coefficients[key], 1e-12)} pJ/FLOP"


def _of_estimates(material: Material) -> Texts:
    """Ranges of devices without a measured row, and how far published figures lie from the middle of the range."""
    assumptions = assumptions_of(material)
    for slug in absent_devices(material):
        for key in ESTIMATED_KEYS:
            found, name = estimate(slug, material.profiles[slug], key, assumptions), f"estimate/{slug}/{key}"
            if found.rate_flop_per_s is not None:
                yield f"{name}/rate", _between(found.rate_flop_per_s, 1e12, "TFLOP/s")
            if found.energy_j_per_flop is not None:
                yield f"{name}/energy", _between(found.energy_j_per_flop, 1e-12, "pJ/FLOP")
    found_misses = misses(material.profiles, assumptions)
    yield "estimate/published", str(len(found_misses))
    yield "estimate/published/inside", str(sum(miss.is_inside for miss in found_misses))
    yield "estimate/published/worst-miss", f"{100 * max(abs(miss.relative) for miss in found_misses):.0f} %"


def _between(found: Range, scale: float, unit: str) -> str:
    return f"{number(found.low / scale)} to {number(found.high / scale)} {unit}"


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
