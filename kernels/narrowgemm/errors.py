"""Errors of the library, each with fields that a caller can act on."""

import difflib
from collections.abc import Iterable


class UnsupportedError(Exception):
    """A kernel, format or device cannot do what was asked, and this is expected.

    A benchmark turns it into a row with status `unsupported`; it is never a reason to fall back to
    something else. A caller's mistake is a `ValueError` instead; anything else is a bug.

    Fields (all kept, so that nobody has to match on text):
      subject: who refuses, mostly a kernel's stem.
      values:  the offending values by name.
      rule:    the rule they break.
      remedy:  what to do instead.
    """

    def __init__(self, subject: str, values: dict[str, object], rule: str, remedy: str) -> None:
        self.subject = subject
        self.values = dict(values)
        self.rule = rule
        self.remedy = remedy
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        super().__init__(f"{subject}: {shown} {rule}; {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.subject, self.values, self.rule, self.remedy)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Text for a name that is not known: what it is, the nearest known names, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
