"""Provenance tells what made a row, and not who or where."""

import getpass
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.measure.fakes import FakeBoard, FakeNvml

from narrowbench.config import ROOT
from narrowbench.measure import nvidia, provenance
from narrowbench.measure.devices import local_devices


def test_a_command_names_no_folder_of_its_user() -> None:
    told = provenance.command_line(
        [
            "/home/ada/.venv/bin/narrowbench",
            "measure",
            "/home/ada/x/out.jsonl",
            "--out=/scratch/ada/y",
            str(ROOT / "a/b"),
        ]
    )
    assert told == "narrowbench measure out.jsonl --out=y a/b"


def test_rows_name_no_host_user_or_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path.home() / "bin/narrowbench"), "measure"])
    text = provenance.provenance_of(local_devices()[-1], ["narrowbench.measure.runner"]).model_dump_json()
    assert platform.node() not in text
    assert str(Path.home() / "bin") not in text
    assert f'"{getpass.getuser()}"' not in text
    assert '"jax":"0.11.2"' in text


def test_a_digest_follows_the_modules_that_were_used() -> None:
    device = local_devices()[-1]
    one = provenance.provenance_of(device, ["narrowbench.measure.lock"])
    other = provenance.provenance_of(device, ["narrowbench.measure.lock", "narrowbench.measure.energy"])
    assert one.sources_sha256 != other.sources_sha256
    assert one.environment_sha256 == other.environment_sha256


def test_git_state_sees_a_change_and_the_lack_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    commit, is_dirty = provenance.git_state(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    assert is_dirty is False
    (tmp_path / "file").write_text("two")
    assert provenance.git_state(tmp_path) == (commit, True)
    assert provenance.git_state(tmp_path / "nowhere") == (None, None)


def test_driver_versions() -> None:
    assert nvidia.driver_versions(FakeNvml(FakeBoard())) == {"nvidia-driver": "580.95.05", "cuda-driver": "13.1"}
