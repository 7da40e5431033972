"""Files and places that a command cannot use: one message with what, where and what to do, status 2, nothing spoilt."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from narrowbench import cli
from narrowbench.measure.devices import local_devices
from narrowbench.report import frame
from narrowbench.store import jsonl
from narrowbench.store.rows import Row

CPU = next(device.slug for device in local_devices() if device.device_class == "cpu")
SMOKE = cli.ROOT / "configs" / "smoke.yaml"
JOB = ["measure", "--device", CPU, "--kernel", "xla_dot_f32", "--suite", "smoke"]
VERSUS = ["versus", "--device", CPU, "--mode", "burst", "--config", str(SMOKE)]
TWO = ["xla_dot_f32", "xla_dot_bf16"]
NUMBERS = ["table", "tab_devices", "--frame", "good.parquet", "--out", "tables", "--numbers"]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run a command line in a folder with odd files; it must end with one message and status 2, which is returned."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("hello\n")
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)) * 3)
    Path("nested.jsonl").write_bytes(b"[" * 100_000 + b"\n")

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["narrowbench", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        error = capsys.readouterr().err
        assert ended.value.code == 2, error
        assert "Traceback" not in error
        assert error.startswith("narrowbench: ")
        return error

    return call


@pytest.fixture
def stored(make_row: Callable[..., Row], tmp_path: Path) -> Path:
    """A frame of one row, whose row lies in the record too."""
    jsonl.append(tmp_path / "results" / "record" / "rows.jsonl", make_row())
    frame.write(frame.collect([make_row()], "record"), tmp_path / "good.parquet")
    return tmp_path / "good.parquet"


@pytest.mark.parametrize("command", [["figure", "fig_roofline"], ["table", "tab_gemm"], ["report"]])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("absent", "absent: No such file or directory; check the path"),
        ("folder", "folder: Is a directory; name a file"),
        ("text/f", "text/f: Not a directory"),
        ("empty", "empty is no frame of results"),
        ("binary", "binary is no frame of results"),
        ("torn.parquet", "torn.parquet is no frame of results"),
        ("other.parquet", "other.parquet is no frame of results"),
        ("typed.parquet", "typed.parquet is no frame of results"),
    ],
)
def test_a_frame_that_is_none_is_named(
    refused: Callable[..., str], stored: Path, command: list[str], given: str, told: str
) -> None:
    Path("torn.parquet").write_bytes(stored.read_bytes()[:-1000])
    pd.DataFrame({"a": [1]}).to_parquet("other.parquet")
    pd.read_parquet(stored).assign(m="many").to_parquet("typed.parquet")
    error = refused(*command, "--frame", given, "--out", "out")
    assert told in error
    assert len(error.splitlines()) < 10
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["collect", "--out"],
        NUMBERS,
        ["compile", "--kernel", "hopper_wgmma_fp8", "--config", str(SMOKE), "--out"],
        [*JOB, "--config", str(SMOKE), "--out"],
        [*VERSUS, "--shape", "8", "8", "8", *TWO, "--out"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    ("place", "told"), [("folder", "folder: Is a directory; name a file"), ("text/out", "a file is in the place of")]
)
@pytest.mark.usefixtures("stored")
def test_a_place_that_cannot_be_written_is_named(
    refused: Callable[..., str], command: list[str], place: str, told: str
) -> None:
    assert told in refused(*command, place)
    assert Path("text").read_text() == "hello\n"


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", [["figure", "fig_roofline"], ["table", "tab_gemm"]])
def test_a_folder_that_is_a_file_is_named(refused: Callable[..., str], command: list[str]) -> None:
    assert "text: File exists; a file is in the place" in refused(*command, "--frame", "good.parquet", "--out", "text")


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", [["collect", "--out"], NUMBERS])
def test_a_full_disk_is_told(refused: Callable[..., str], command: list[str]) -> None:
    assert "/dev/full: No space left on device; free space" in refused(*command, "/dev/full")
    assert not Path("/dev/full").is_file()


@pytest.mark.usefixtures("stored")
def test_a_page_without_its_figures_says_which_to_draw(refused: Callable[..., str]) -> None:
    error = refused("report", "--frame", "good.parquet", "--out", "page.html")
    assert "figures/local_roofline.svg: no such figure" in error
    assert "narrowbench figure local_roofline" in error
    assert not Path("page.html").exists()


@pytest.mark.parametrize("out", ["absent.pdf", "folder", "text", "there.typ", "nowhere/there.pdf"])
def test_a_paper_without_its_source_is_named(refused: Callable[..., str], out: str) -> None:
    Path("there.typ").write_text("text")
    assert f"{out} is no PDF beside a source" in refused("paper", "--out", out)
    assert Path("there.typ").read_text() == "text"


def test_a_paper_in_the_place_of_a_folder_is_refused(refused: Callable[..., str]) -> None:
    Path("taken.typ").write_text("text")
    Path("taken.pdf").mkdir()
    assert "taken.pdf: Is a directory" in refused("paper", "--out", "taken.pdf")


@pytest.mark.parametrize("command", ["promote", "tune-tables"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("absent", "absent: No such file"),
        ("folder", "folder: Is a directory"),
        ("empty", "no "),
        ("binary", "binary:1: not JSON"),
        ("nested.jsonl", "nested.jsonl:1: not JSON"),
    ],
)
def test_a_source_that_holds_no_rows_is_named(refused: Callable[..., str], command: str, given: str, told: str) -> None:
    assert told in refused(command, given)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--record", "absent"], "absent: no such folder of results"),
        (["--record", "text"], "text: is a file where a folder"),
        (["--record", "folder", "--raw", "text"], "text: is a file where a folder"),
    ],
)
def test_a_folder_of_results_that_is_none_is_named(refused: Callable[..., str], options: list[str], told: str) -> None:
    assert told in refused("collect", "--out", "out.parquet", *options)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe\x00", "not YAML"),
        (b"title: 2020-13-45\n", "not YAML"),
        (b"seed: " + b"9" * 5000, "not YAML"),
        (None, "campaign.yaml: Is a directory"),
    ],
)
def test_a_campaign_that_cannot_be_read_is_named(refused: Callable[..., str], content: bytes | None, told: str) -> None:
    path = Path("campaign.yaml")
    path.mkdir() if content is None else path.write_bytes(content)
    error = refused(*JOB, "--config", str(path))
    assert "campaign.yaml" in error
    assert told in error


@pytest.mark.parametrize("command", [JOB, ["campaign", "--device", CPU], ["compile", "--kernel", "x", "--out", "text"]])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plan": {"cpu": [{"kernels": ["xla_dot_f3"], "suites": ["smoke"], "modes": ["burst"]}]}}, "xla_dot_f32"),
        ({"compile": [{"kernels": ["xla_dot_f32"], "suites": ["smoke"], "targets": ["h300"]}]}, "h200"),
        ({"seed": 2**63}, "seed: Input should be less than or equal to"),
    ],
)
def test_a_campaign_with_unknown_names_measures_and_deletes_nothing(
    refused: Callable[..., str], command: list[str], change: dict[str, Any], told: str
) -> None:
    path = Path("campaign.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(SMOKE.read_text()) | change))
    assert told in refused(*command, "--config", str(path))
    assert Path("text").read_text() == "hello\n"
    assert not Path("results").exists()


def test_a_job_that_the_campaign_does_not_plan_is_no_finished_one(refused: Callable[..., str]) -> None:
    job = ["measure", "--device", CPU, "--config", str(SMOKE), "--out", "out.jsonl"]
    error = refused(*job, "--kernel", "xla_dot_f32", "--suite", "square")
    assert "has no xla_dot_f32 × square" in error
    assert "xla_dot_bf16 × smoke" in error
    assert not Path("out.done").exists()


@pytest.mark.parametrize("name", ["binary", "text", "nested.jsonl"])
def test_nothing_is_appended_to_what_is_no_file_of_rows(refused: Callable[..., str], name: str) -> None:
    before = Path(name).read_bytes()
    assert f"{name}: holds no result" in refused(*JOB, "--config", str(SMOKE), "--out", name)
    assert Path(name).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "0", "8", "8", *TWO], "shape: m: Input should be greater than 0"),
        (["--shape", "8", "8", str(2**31), *TWO], "shape: k: Input should be less than 2147483648"),
        (["--shape", *["99999999"] * 3, *TWO], "more FLOP than 64 bits"),
        (["--shape", "8", "8", "8", "--out-format", "fp3", *TWO], "unknown output format 'fp3'"),
        (
            ["--shape", "8", "8", "8", "--distribution", "norm", *TWO],
            "distributions.0: unknown distribution 'norm'; did you mean normal",
        ),
        (["--shape", "8", "8", "8", TWO[0]], "not two or more"),
        (TWO, "takes a --shape, which may have --groups, or suites"),
        (["--shape", "8", "8", "8", "--suite", "smoke", *TWO], "give one of them"),
        (["--suite", "smoke", "--groups", "2", "equal", *TWO], "give one of them"),
        (["--suite", "smoek", *TWO], "did you mean smoke"),
        (["--shape", "8", "8", "8", TWO[0], *TWO], "not two or more, each once"),
    ],
)
def test_a_comparison_of_what_is_none_leaves_no_row(
    refused: Callable[..., str], arguments: list[str], told: str
) -> None:
    assert told in refused(*VERSUS, *arguments)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        (("case", "kernel"), "../../../tmp/x", "case.gemm.kernel"),
        (("case", "suite"), "..", "case.gemm.suite"),
        (("provenance", "device"), "/etc", "provenance.device"),
        (("provenance", "utc_time"), "yesterday", "provenance.utc_time"),
        (("case", "a_format"), "fp3", "unknown format 'fp3'"),
        (("case", "out_format"), "nvfp4", "unknown output format 'nvfp4'"),
        (("case", "m"), 10**30, "case.gemm.m"),
        (("case", "seed"), 10**30, "case.gemm.seed"),
    ],
)
@pytest.mark.parametrize("command", [["promote", "rows.jsonl"], ["collect", "--record", ".", "--out", "f"]])
def test_a_row_that_cannot_be_stored_anywhere_is_named_with_its_line(
    refused: Callable[..., str],
    make_row: Callable[..., Row],
    command: list[str],
    where: tuple[str, str],
    value: object,
    told: str,
) -> None:
    Path("nested.jsonl").unlink()
    data = json.loads(make_row().model_dump_json())
    data[where[0]][where[1]] = value
    Path("rows.jsonl").write_text(json.dumps(data) + "\n")
    error = refused(*command)
    assert "rows.jsonl:1: " in error
    assert told in error
    assert not Path("f").exists()


@pytest.mark.parametrize("seed", [str(2**63), "-1"])
def test_a_seed_that_no_row_could_hold_is_refused_before_anything_is_checked(seed: str, tmp_path: Path) -> None:
    out = tmp_path / "checks.md"
    check = ["check", "--device", CPU, "--config", str(SMOKE), "--out", str(out), "--seed", seed]
    ended = CliRunner().invoke(cli.app, check)
    assert ended.exit_code == 2
    assert "Invalid value for '--seed': Input should be" in ended.output
    assert not out.exists()
