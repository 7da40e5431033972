"""Vectors of words: the same every time, of the text they are named for, and alike for words that stand together."""

import numpy as np
import pytest

from narrowbench.measure import operands, text
from narrowgemm.errors import UnsupportedError
from narrowgemm.problem import GemmProblem


def test_vectors_are_centred_of_mean_square_one_and_more_alike_for_neighbours() -> None:
    vectors, numbers = text.embedded_text()
    assert (vectors.shape, vectors.dtype) == ((text.WORDS, text.WIDTH), np.float32)
    assert set(np.unique(numbers)) == set(range(text.WORDS)), "every vector is a word of the text"
    share = np.bincount(numbers) / len(numbers)
    assert np.abs(share @ vectors).max() < 1e-3
    assert np.mean(share @ vectors.astype(np.float64) ** 2) == pytest.approx(1, rel=1e-4)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    some = np.random.default_rng(0).permutation(numbers)[:20_000]
    beside = np.mean(np.sum(unit[numbers[:20_000]] * unit[numbers[1:20_001]], axis=1))
    apart = np.mean(np.sum(unit[some[:-1]] * unit[some[1:]], axis=1))
    assert beside > apart + 0.05


def test_neighbours_and_their_information_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "WORDS", 3)
    counts = text._neighbours(np.array([0, 1, 2, 2, 2, 2], dtype=np.int32))
    # 0 reaches 1 and three 2s; 1 reaches four 2s; six pairs of 2s, each seen from both sides.
    assert counts.tolist() == [[0, 1, 3], [1, 0, 4], [3, 4, 12]]
    information = text._information(counts)
    assert information[0, 1] == pytest.approx(np.log(1 * 28 / (4 * 5)))
    assert information[0, 0] == 0
    assert information[2, 2] == 0, "12 where independent words would give 19² / 28"


def test_rows_are_passages_of_the_text_and_sets_are_others() -> None:
    vectors, numbers = text.embedded_text()
    k = 3 * text.WIDTH - 100
    a, b = (np.asarray(x) for x in operands.originals(GemmProblem(5, 4, k, "f32", "f32"), "text", 0, "timing", 0))
    known = {tuple(vector[:8]): number for number, vector in enumerate(vectors)}
    read = [known[tuple(a[row, word * text.WIDTH :][:8])] for row in range(5) for word in range(3)]
    (first,) = (
        place
        for place in np.flatnonzero(numbers == read[0])
        if (numbers.take(range(place, place + 15), mode="wrap") == read).all()
    )
    assert 0 <= first < len(numbers)
    other = np.asarray(operands.originals(GemmProblem(5, 4, k, "f32", "f32"), "text", 0, "timing", 1)[0])
    assert (a != other).any()
    assert (a[:4] != b).any()


def test_another_text_is_refused_as_other_data_under_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_FOLDERS", ("_src/scipy",))
    with pytest.raises(UnsupportedError, match=r"is not the text that these data are made of.*install jax 0\.11\.2"):
        text.embedded_text.__wrapped__()
