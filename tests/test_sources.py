from pathlib import Path

import pytest

from narrowbench import sources
from narrowbench.config import ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch):
    """A project of four modules: `top` imports `middle` inside a function, `middle` imports `low`; `other` is alone."""
    package = tmp_path / "workflow" / "narrowbench"
    package.mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "top": "def work():\n    from narrowbench import middle\n",
        "middle": "import os\nimport narrowbench.low\n",
        "low": "x = 1\n",
        "other": "y = 1\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "_PACKAGES", {"narrowbench": tmp_path / "workflow"})
    for cached in (sources._find, sources._imports):
        cached.cache_clear()
    yield package
    for cached in (sources._find, sources._imports):
        cached.cache_clear()


@pytest.mark.usefixtures("project")
def test_imports_are_followed_wherever_they_stand():
    names = {"narrowbench", "narrowbench.top", "narrowbench.middle", "narrowbench.low"}
    assert sources.closure(["narrowbench.top"]) == names


def test_the_digest_changes_with_what_is_used_and_with_nothing_else(project, tmp_path):
    table = tmp_path / "table.json"
    table.write_text("{}")

    def digest():
        return sources.sources_sha256(["narrowbench.top"], [table])

    first = digest()
    (project / "other.py").write_text("y = 2\n")
    assert digest() == first
    (project / "low.py").write_text("x = 2\n")
    second = digest()
    assert second != first
    table.write_text("[]")
    assert digest() != second


@pytest.mark.parametrize("module", ["narrowbench.absent", "numpy"])
def test_a_module_that_is_not_ours_is_refused(module):
    with pytest.raises(ValueError, match=f"module '{module}' has no source"):
        sources.sources_sha256([module])


def test_this_project_uses_its_own_layout():
    assert (ROOT / "pyproject.toml").is_file()
    assert "narrowgemm.problem" in sources.closure(["narrowbench.store.rows"])
