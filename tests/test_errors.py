import pickle

from narrowgemm.errors import UnsupportedError, unknown_name


def test_the_text_says_what_values_rule_and_remedy() -> None:
    error = UnsupportedError("hopper_wgmma_fp8", {"k": 4100}, "is not a multiple of tile_k=128", "pad K to 4224")
    assert str(error) == "hopper_wgmma_fp8: k=4100 is not a multiple of tile_k=128; pad K to 4224"
    assert not isinstance(error, ValueError)


def test_the_fields_survive_pickling_and_are_the_callers_no_more() -> None:
    values: dict[str, object] = {"k": 4100}
    error = UnsupportedError("kernel", values, "is odd", "pad K")
    values["k"] = 0
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.subject, copy.values, copy.rule, copy.remedy) == ("kernel", {"k": 4100}, "is odd", "pad K")
    assert str(copy) == str(error)


def test_an_unknown_name_comes_with_the_nearest_and_all() -> None:
    assert unknown_name("format", "mxfp9", ["nvfp4", "mxfp8"]) == (
        "unknown format 'mxfp9'; did you mean mxfp8? (known: mxfp8, nvfp4)"
    )
    assert unknown_name("format", "zzz", ["nvfp4"]) == "unknown format 'zzz' (known: nvfp4)"
    assert "unknown kernel 7" in unknown_name("kernel", 7, ["a"])
