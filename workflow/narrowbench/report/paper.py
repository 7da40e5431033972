"""The PDF of the paper: typst through its wheel, embedded fonts alone and no dates: equal sources are equal bytes."""

from pathlib import Path

import typst

from narrowbench.errors import PaperError
from narrowbench.store.whole import whole


def typeset(out: Path) -> None:
    """Typeset the source of the same stem that lies beside `out`, with what it takes from its folder and that above.

    Raises PaperError with typst's own text, which names the line, and the number that the record lacks if one does.
    """
    source = out.with_suffix(".typ").resolve()
    if out.suffix != ".pdf" or not source.is_file():
        raise PaperError(f"{out} is no PDF beside a source {source.name}; name one, as paper/narrowgemm.pdf is")
    try:
        with whole(out) as draft:
            typst.compile(
                source, output=draft, root=source.parents[1], format="pdf", ignore_system_fonts=True, timestamp=0
            )
    except typst.TypstError as error:
        raise PaperError(f"{out.with_suffix('.typ')}: {error}") from error
