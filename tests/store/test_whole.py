"""Files are whole or as they were, whatever interrupts their writing."""

import subprocess
import sys
from pathlib import Path

import pytest

from narrowbench.store.whole import whole, write_text


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_appears_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with whole(path) as draft:
        draft.write_text("done")
        assert not path.exists()
        assert draft.suffix == ".draft"
    assert path.read_text() == "done"
    assert _names(path.parent) == ["file.txt"]


def test_a_fault_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of the new" * 10_000 + "\ud800")
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["file.txt"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk's end."""
    path = tmp_path / "file.txt"
    write_text(path, "old")
    program = (
        "import resource, sys; from pathlib import Path; from narrowbench.store.whole import write_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "write_text(Path(sys.argv[1]), 'new ' * 10_000)"
    )
    run = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=120)
    assert "File too large" in run.stderr
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["file.txt"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "old")
    (tmp_path / "link.txt").symlink_to("file.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "file.txt").read_text() == "new"


def test_a_device_is_written_to_and_stays_one() -> None:
    write_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_a_fault_of_the_disk_names_the_file_that_was_asked_for() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(Path("/proc/file.txt"), "text")
    assert caught.value.filename == "/proc/file.txt"


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("n" * 255), "text")
    assert _names(tmp_path) == ["n" * 255]
