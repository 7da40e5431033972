"""What figures, tables and numbers are made of: the frame of results, and what the configuration says of devices."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from narrowbench.config import load_suite
from narrowbench.models.aims import Aim, load_aims
from narrowbench.models.claims import Claim, load_claims
from narrowbench.models.hardware import DeviceProfile, Source, load_profiles, load_sources
from narrowbench.report import frame as frames
from narrowbench.report.select import Place


@dataclass(frozen=True, eq=False)
class Material:
    """A frame of results; device profiles and claims are read from the configuration when first asked for.

    Equal to itself alone, so that what is fitted to a material can be kept for whoever asks next.
    """

    frame: pd.DataFrame

    @classmethod
    def load(cls, path: Path) -> "Material":
        """The material of a stored frame. Raises StoreError for a file that holds none."""
        return cls(frames.load(path))

    @cached_property
    def profiles(self) -> dict[str, DeviceProfile]:
        """Device profiles by slug."""
        return load_profiles()

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Sources of the profiles and of the claims by key."""
        return load_sources()

    @cached_property
    def claims(self) -> list[Claim]:
        """The claims of the article that the paper weighs."""
        return load_claims(self.sources)

    @cached_property
    def aims(self) -> tuple[Aim, ...]:
        """What the kernels are meant to reach."""
        return load_aims()

    @cached_property
    def layers_in_groups(self) -> dict[tuple[int, int, int, str], str]:
        """Names of models' layers that are many products in one launch, by N, K, number of products, and kind."""
        return {
            (entry.n, entry.k, entry.groups.count, entry.groups.kind): entry.name.removesuffix(f"-{entry.groups.kind}")
            for entry in load_suite("moe").entries
            if entry.groups is not None
        }

    @cached_property
    def of_record(self) -> "Material":
        """The material of the record's lines alone."""
        lines = self.origin("record")
        return self if len(lines) == len(self.frame) else Material(lines)

    def origin(self, *origins: str) -> pd.DataFrame:
        """Lines of the frame from these origins."""
        return self.frame[self.frame.origin.isin(origins)]

    def device_name(self, device: str) -> str:
        """Name of a device for people: its profile's, or where it has none what its driver says."""
        if device in self.profiles:
            return self.profiles[device].name
        return str(self.frame[self.frame.device == device].device_kind.iloc[0])

    def place_name(self, place: Place) -> str:
        """A place as panels title it: the device, and that the run is this machine's own where it is."""
        return self.device_name(place.device) + (" (this machine)" if place.origin == "local" else "")
