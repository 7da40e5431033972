"""Real data for operands: words of real text as vectors, made from how often they stand near each other.

The text is that of JAX's own sources (names, docstrings, comments), which every machine that measures has, byte for
byte. A word's vector is made as embeddings were before neural ones: positive pointwise mutual information of its
neighbours, by the largest eigenvectors, weighted with the roots of their eigenvalues (Levy and Goldberg, «Neural Word
Embedding as Implicit Matrix Factorization», NIPS 2014). Like activations of language models, and unlike anything drawn
independently, such rows differ in size by word, columns by dimension, and rows repeat as words do.
"""

import hashlib
import re
from collections import Counter
from functools import cache
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from narrowgemm.errors import UnsupportedError

#: Folders of the package `jax` whose text is used, and the digest of that of JAX 0.11.2. Another text would be other
#: data under the same name.
_FOLDERS = ("_src/lax", "_src/numpy", "_src/scipy")
_TEXT_SHA256 = "fb640b5ab572dd091e45c4a3a07dc33a0e95f69841e9f23185334a49d3bdbf0c"

#: Words with a vector, the most frequent ones; dimensions of a vector; neighbours that count, on each side.
WORDS, WIDTH = 1024, 256
_REACH = 4


@cache
def embedded_text() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Vectors (WORDS, WIDTH), and the text as the numbers of its words in order.

    Over the words of the text the vectors' elements have the mean square 1, and each dimension the mean 0. Raises
    UnsupportedError where JAX's sources are not those that the data are defined by.
    """
    text = _text()
    words = re.findall(r"[a-z]{2,}", text.lower())
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    number = {word: index for index, (word, _) in enumerate(ranked[:WORDS])}
    numbers = np.array([number[word] for word in words if word in number], dtype=np.int32)
    vectors = _vectors(_information(_neighbours(numbers)))
    share = np.bincount(numbers, minlength=WORDS) / len(numbers)
    vectors -= share @ vectors
    vectors /= np.sqrt(np.mean(share @ vectors**2))
    return vectors.astype(np.float32), numbers


def _text() -> str:
    root = Path(jax.__file__).parent
    paths = [path for folder in _FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    text = b"".join(path.read_bytes() for path in paths)
    digest = hashlib.sha256(text).hexdigest()
    if digest != _TEXT_SHA256:
        raise UnsupportedError(
            "text",
            {"jax": jax.__version__, "sha256": digest[:12]},
            f"is not the text that these data are made of, {_TEXT_SHA256[:12]}",
            "install jax 0.11.2 as it was published",
        )
    return text.decode()


def _neighbours(numbers: NDArray[np.int32]) -> NDArray[np.float64]:
    """How often each word stands within reach of each other one, (WORDS, WORDS)."""
    counts = np.zeros(WORDS * WORDS, dtype=np.int64)
    for distance in range(1, _REACH + 1):
        pairs = numbers[:-distance].astype(np.int64) * WORDS + numbers[distance:]
        counts += np.bincount(pairs, minlength=WORDS * WORDS)
    one_way = counts.reshape(WORDS, WORDS).astype(np.float64)
    return one_way + one_way.T


def _information(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positive pointwise mutual information: ln of the count over that of independent words, nought where negative."""
    marginal = counts.sum(axis=1)
    expected = np.outer(marginal, marginal) / marginal.sum()
    ratio = np.divide(counts, expected, out=np.ones_like(counts), where=expected > 0)
    information: NDArray[np.float64] = np.log(np.maximum(ratio, 1.0))
    return information


def _vectors(information: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of the largest eigenvectors times the roots of their eigenvalues; their signs as the largest element's."""
    values, columns = eigh(information, subset_by_index=(WORDS - WIDTH, WORDS - 1))
    largest = columns[np.abs(columns).argmax(axis=0), np.arange(WIDTH)]
    vectors: NDArray[np.float64] = columns * np.sign(largest) * np.sqrt(np.maximum(values, 0.0))
    return vectors[:, ::-1]
