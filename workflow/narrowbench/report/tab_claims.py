"""`tab_claims`: what an article claimed of Pallas on Blackwell, and what holds."""

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count


def table(material: Material) -> Table:
    """A line a claim, in the article's order."""
    columns = [
        count("id", "no."),
        Column("quote", "claim", lambda quote: f"«{quote}»"),
        Column("verdict", "verdict"),
        Column("truth", "what holds"),
        Column("sources", "sources"),
    ]
    rows = [
        [claim.id, claim.quote, claim.verdict, claim.truth, " ".join(claim.sources) or claim.derivation]
        for claim in material.claims
    ]
    return Table("The article's claims, weighed", columns, rows, "Sources are listed in docs/claims.md.")
