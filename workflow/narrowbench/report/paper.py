"""The PDF of the paper: typst through its wheel, embedded fonts alone and no dates: equal sources are equal bytes."""

from pathlib import Path

import typst

from narrowbench.errors import PaperError


def typeset(out: Path) -> None:
    """Typeset the source of the same stem that lies beside `out`, with what it takes from its folder and that above.

    Raises PaperError with typst's own text, which names the line, and the number that the record lacks if one does.
    """
    source = out.with_suffix(".typ").resolve()
    try:
        typst.compile(source, output=out, root=source.parents[1], ignore_system_fonts=True, timestamp=0)
    except typst.TypstError as error:
        raise PaperError(f"{out.with_suffix('.typ')}: {error}") from error
