"""A device's own name as a folder name. No JAX."""

import re


def slugged(name: str) -> str:
    """`name` in lower case, digits and hyphens, without trade marks and clock rates: «NVIDIA H200» is nvidia-h200.

    Words that say no more than what kind of thing it is go too, unless nothing else is there, as in JAX's «cpu».
    """
    plain = re.sub(r"\((r|tm|c)\)|@.*$", " ", name.lower()).replace("+", " plus ")
    told = re.sub(r"\b\d+-core\b|\b(cpu|processor|graphics)\b", " ", plain)
    return _hyphened(told) or _hyphened(plain)


def _hyphened(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")
