"""Claims that a published article made about JAX Pallas on Blackwell, each weighed against primary sources. No JAX."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from narrowbench.config import CONFIGS, Settings, load
from narrowbench.errors import ConfigError
from narrowbench.models.hardware import Source, sources_markdown
from narrowgemm.errors import unknown_name

Verdict = Literal["supported", "partly supported", "misleading", "wrong", "cannot be verified"]
VERDICTS: tuple[Verdict, ...] = ("supported", "partly supported", "misleading", "wrong", "cannot be verified")

MAX_QUOTE_WORDS = 12


class Claim(Settings):
    """One claim: where `sources` is empty, `derivation` says what the verdict rests on instead."""

    id: PositiveInt
    quote: str
    topic: str
    verdict: Verdict
    truth: str = Field(description="the true value, or why the claim holds or fails")
    sources: tuple[str, ...] = ()
    derivation: str | None = None
    finding: str | None = Field(None, description="what this suite found itself, and by which kind of evidence")

    @field_validator("quote")
    @classmethod
    def _short(cls, quote: str) -> str:
        words = len(quote.split())
        if words > MAX_QUOTE_WORDS:
            raise ValueError(f"quote of {words} words: at most {MAX_QUOTE_WORDS}, so that it stays a quotation")
        return quote

    @model_validator(mode="after")
    def _founded(self) -> Self:
        if not self.sources and self.derivation is None:
            raise ValueError(f"claim {self.id} names neither sources nor a derivation")
        return self


class Claims(Settings):
    """The claims in order: ids run from 1 without a gap."""

    claims: list[Claim]

    @field_validator("claims")
    @classmethod
    def _numbered(cls, claims: list[Claim]) -> list[Claim]:
        ids = [claim.id for claim in claims]
        if ids != list(range(1, len(ids) + 1)):
            raise ValueError(f"ids {ids} do not run from 1 to {len(ids)}")
        return claims


def load_claims(sources: Mapping[str, Source], path: Path = CONFIGS / "claims.yaml") -> list[Claim]:
    """The claims in order. Raises ConfigError naming file, claim and rule."""
    claims = load(Claims, path).claims
    for claim in claims:
        for key in claim.sources:
            if key not in sources:
                raise ConfigError(f"{path.name}: claim {claim.id}: {unknown_name('source', key, sources)}")
    return claims


def verdict_counts(claims: Sequence[Claim]) -> dict[Verdict, int]:
    """Number of claims of each verdict, every verdict in its order."""
    counts = Counter(claim.verdict for claim in claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _what_holds(claim: Claim) -> str:
    return claim.truth if claim.finding is None else f"{claim.truth}. Found here: {claim.finding}"


def _basis(claim: Claim) -> str:
    return ", ".join(claim.sources) or str(claim.derivation)


def claims_markdown(claims: Sequence[Claim], sources: Mapping[str, Source]) -> str:
    """The page `docs/claims.md`: counts, the table of claims, and the sources it names."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(claims).items())
    used = {key: sources[key] for claim in claims for key in claim.sources}
    rows = [
        " | ".join([f"| {c.id}", f"«{c.quote}»", c.topic, c.verdict, _what_holds(c), f"{_basis(c)} |"]) for c in claims
    ]
    return "\n".join(
        [
            "# Claims about Pallas on Blackwell, weighed",
            "",
            "Generated from `configs/claims.yaml`; edit that file. The quotations are from a press article on JAX's",
            f"Blackwell tutorial; of its {len(claims)} claims: {counts}.",
            "",
            "| # | claim | about | verdict | what holds | source |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "## Sources",
            "",
            sources_markdown(used),
        ]
    )
