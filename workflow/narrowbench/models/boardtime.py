"""How long a campaign keeps a device, from the protocol alone. No JAX."""

from collections.abc import Iterator
from dataclasses import dataclass

from narrowbench.config import BurstSettings, Campaign, Protocol, Setting, SustainedSettings, load_suite
from narrowbench.models.estimate import Range
from narrowbench.names import DeviceClass


@dataclass(frozen=True)
class PlannedJob:
    """A kernel on a suite: number of cases, and seconds that sampling them takes, from the least to the most.

    Compiling, checking and a job's start are not in it.
    """

    kernel: str
    suite: str
    cases: int
    sampling_s: Range


def planned_jobs(campaign: Campaign, protocol: Protocol, device_class: DeviceClass) -> list[PlannedJob]:
    """Every job of the campaign on such a device, in its order; the device's roofs are not among them."""
    jobs = []
    for kernel, suite in campaign.jobs(device_class):
        settings = campaign.settings(device_class, kernel, suite)
        shapes = len(load_suite(suite).shapes)
        each = [sampling_s(setting, protocol) for setting in settings]
        total = Range(shapes * sum(s.low for s in each), shapes * sum(s.high for s in each))
        jobs.append(PlannedJob(kernel, suite, shapes * len(settings), total))
    return jobs


def told(campaign: Campaign, protocol: Protocol) -> Iterator[str]:
    """A line for each job, and one for each class of devices."""
    for device_class in campaign.plan:
        jobs = planned_jobs(campaign, protocol, device_class)
        for job in jobs:
            yield f"{device_class} {job.kernel} {job.suite}: {_in_words(job.cases, job.sampling_s)}"
        total = Range(sum(job.sampling_s.low for job in jobs), sum(job.sampling_s.high for job in jobs))
        yield f"{device_class}: {_in_words(sum(job.cases for job in jobs), total)}, without roofs, compiling and checks"


def _in_words(cases: int, seconds: Range) -> str:
    return f"{cases} cases, {seconds.low / 60:.1f} to {seconds.high / 60:.1f} min"


def sampling_s(setting: Setting, protocol: Protocol) -> Range:
    """Seconds of sampling one case: with the fewest samples, and until the last bound of the stop rule."""
    if setting.mode == "burst":
        return _burst_s(protocol.burst)
    return _sustained_s(protocol.sustained, setting.window_s or protocol.sustained.window_s)


def _burst_s(settings: BurstSettings) -> Range:
    """A train whose launches are longer than the time it is given takes as long as one of them."""
    sample_s = settings.idle_s + settings.warm_up_s + settings.train_s
    stop = settings.stop
    return Range(stop.min_samples * sample_s, min(stop.max_samples * sample_s, stop.budget_s + sample_s))


def _sustained_s(settings: SustainedSettings, window_s: float) -> Range:
    stop = settings.stop
    longest_s = window_s + settings.start_jitter_s
    most_s = settings.warm_up_s + min(stop.max_samples * longest_s, stop.budget_s + longest_s)
    return Range(min(stop.min_samples * window_s, stop.budget_s), most_s)
