"""Claims: what the schema refuses, and that the page is in step with the data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrowbench.models import claims, hardware

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sources() -> dict[str, hardware.Source]:
    return hardware.load_sources()


def test_the_committed_claims_are_whole(sources: dict[str, hardware.Source]) -> None:
    loaded = claims.load_claims(sources)
    assert len(loaded) == 55
    assert sum(claims.verdict_counts(loaded).values()) == 55


def test_the_page_is_in_step_with_the_claims(sources: dict[str, hardware.Source]) -> None:
    """Where this fails: write `claims_markdown(load_claims(...), sources)` to docs/claims.md."""
    loaded = claims.load_claims(sources)
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == claims.claims_markdown(loaded, sources)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(verdict="rubbish"), ["claims.0.verdict", "'supported'"]),
        (lambda c: c.update(qoute="x"), ["qoute", "did you mean quote"]),
        (lambda c: c.update(quote="word " * 13), ["claims.0.quote", "13 words", "at most 12"]),
        (lambda c: c.update(sources=["N88"]), ["claim 1", "N88"]),
        (lambda c: c.update(sources=[]), ["claim 1", "derivation"]),
        (lambda c: c.update(id=2), ["ids"]),
    ],
)
def test_a_spoilt_claim_is_refused(
    tmp_path: Path, sources: dict[str, hardware.Source], change: Callable[[dict[str, Any]], None], words: list[str]
) -> None:
    claim = {"id": 1, "quote": "a quote", "topic": "t", "verdict": "wrong", "truth": "why", "sources": ["J1"]}
    change(claim)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": [claim]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"claims\.yaml") as refusal:
        claims.load_claims(sources, path)
    for word in words:
        assert word in str(refusal.value)
