import json
from typing import get_args

import pytest
import yaml

from narrowbench import config, names, pipeline
from narrowbench.config import CONFIGS, ROOT, Campaign, ConfigError, load_campaign, load_protocol, load_suite, parse
from narrowbench.measure import operands
from narrowbench.store.rows import GemmCase
from narrowgemm.errors import unknown_name

CAMPAIGNS = ("main", "smoke", "record", "energy", "space")


ENTRY = {"kernels": ["xla_dot_f32"], "suites": ["smoke"], "modes": ["burst"], "out_formats": ["f32"]}


def _campaign(**changes):
    return {"title": "test", "plan": {"cpu": [dict(ENTRY)]}, "roof_modes": ["burst"]} | changes


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_campaigns_of_the_project_are_sound(name):
    campaign = load_campaign(CONFIGS / f"{name}.yaml")
    assert pipeline.read_campaign(campaign.model_dump(mode="json")) == campaign


@pytest.mark.parametrize("name", config.suite_names())
def test_suites_of_the_project_are_sound(name):
    assert all(shape.origin for shape in load_suite(name).shapes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"plna": {}}, "top level: unknown key 'plna'; did you mean plan?"),
        ({"plan": {"cpu": [{"kernel": ["x"]}]}}, "plan.cpu.0: unknown key 'kernel'; did you mean kernels?"),
        ({"plan": {"hoper": []}}, "unknown class of devices 'hoper'; did you mean hopper?"),
        ({"protocol": {"burst": {"trian_s": 1}}}, "protocol: burst: unknown key 'trian_s'; did you mean train_s?"),
        ({"protocol": {"burst": {"train_s": -1}}}, "burst.train_s: Input should be greater than 0"),
        ({"protocol": {"burst": {"stop": {"min_samples": 5}}}}, "burst.stop.min_samples: Input should be greater than"),
        ({"protocol": {"burst": {"stop": {"max_samples": 9}}}}, "max_samples=9 is below min_samples=10"),
        ({"roof_modes": ["brust"]}, "roof_modes.0: unknown mode 'brust'; did you mean burst?"),
        ({"seed": -1}, "seed"),
        ({"plan": {"cpu": [ENTRY | {"out_formats": ["bf61"]}]}}, "out_formats.0: unknown output format 'bf61'; did"),
        ({"plan": {"cpu": [ENTRY | {"epilogues": ["bais_relu"]}]}}, "epilogues.0: unknown epilogue part 'bais'; did"),
        ({"plan": {"cpu": [ENTRY | {"operands": [["f32", "fp8_e4m2"]]}]}}, "unknown format 'fp8_e4m2'; did you mean"),
        (
            {"plan": {"cpu": [ENTRY | {"modes": ["sustaned"]}]}},
            "modes.0: unknown mode 'sustaned'; did you mean sustained?",
        ),
        (
            {"plan": {"cpu": [ENTRY | {"caches": ["rotate"]}]}},
            "caches.0: unknown cache 'rotate'; did you mean rotated?",
        ),
        (
            {"plan": {"cpu": [ENTRY | {"distributions": ["normla"]}]}},
            "unknown distribution 'normla'; did you mean normal",
        ),
    ],
)
def test_a_wrong_campaign_names_key_and_nearest_known_name(changes, told):
    with pytest.raises(ConfigError) as caught:
        parse(Campaign, _campaign(**changes), "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert told in str(caught.value)


def test_every_fault_is_listed():
    with pytest.raises(ConfigError) as caught:
        parse(Campaign, _campaign(seed=-1, roof_modes=[]), "mine.yaml")
    assert "seed" in str(caught.value)
    assert "roof_modes" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "name", "nearest"), [("kernels", "xla_dot_bf61", "xla_dot_bf16"), ("suites", "smoek", "smoke")]
)
def test_an_unknown_kernel_or_suite_is_named_with_its_nearest(field, name, nearest):
    data = _campaign()
    data["plan"]["cpu"][0][field] = [name]
    with pytest.raises(ValueError, match=f"{name}.*did you mean {nearest}"):
        pipeline.read_campaign(data)


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [", "not YAML"), ("- a", "holds list, not a mapping"), ("", "holds NoneType"), (None, "no such file")],
)
def test_a_file_that_is_no_mapping_is_told(tmp_path, text, told):
    path = tmp_path / "campaign.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        load_campaign(path)
    assert str(path) in str(caught.value)


def test_an_override_replaces_its_value_alone():
    base = load_protocol()
    campaign = parse(Campaign, _campaign(protocol={"burst": {"stop": {"min_samples": 7}}}), "mine")
    assert load_protocol(campaign).burst.stop.min_samples == 7
    assert load_protocol(campaign).burst.stop.max_samples == base.burst.stop.max_samples
    assert load_protocol(campaign).sustained == base.sustained


def test_entries_of_one_kernel_and_suite_make_one_job_without_repeating_a_case():
    entries = [ENTRY, ENTRY | {"modes": ["burst", "sustained"], "distributions": ["normal", "zeros"]}]
    campaign = parse(Campaign, _campaign(plan={"cpu": entries}), "mine")
    assert campaign.jobs("cpu") == (("xla_dot_f32", "smoke"),)
    settings = campaign.settings("cpu", "xla_dot_f32", "smoke")
    assert [(s.mode, s.distribution) for s in settings] == [
        ("burst", "normal"),
        ("burst", "zeros"),
        ("sustained", "normal"),
        ("sustained", "zeros"),
    ]
    assert campaign.jobs("hopper") == ()


def test_lengths_of_windows_are_settings_of_their_own():
    entry = {"kernels": ["xla_dot_f32"], "suites": ["smoke"], "modes": ["sustained"]}
    both = parse(Campaign, _campaign(plan={"cpu": [entry, entry | {"windows_s": [0.5, 5]}]}), "mine")
    assert [setting.window_s for setting in both.settings("cpu", "xla_dot_f32", "smoke")] == [None, 0.5, 5.0]
    again = parse(Campaign, _campaign(plan={"cpu": [entry, entry | {"repeat": 2}]}), "mine")
    assert [setting.repeat for setting in again.settings("cpu", "xla_dot_f32", "smoke")] == [None, 2]
    with pytest.raises(ConfigError, match="only sustained cases have windows"):
        parse(
            Campaign, _campaign(plan={"cpu": [entry | {"windows_s": [0.5], "modes": ["burst", "sustained"]}]}), "mine"
        )
    case = {"kernel": "k", "suite": "s", "m": 1, "n": 1, "k": 1, "a_format": "f32", "b_format": "f32"}
    case |= {"out_format": "f32", "distribution": "normal", "seed": 0, "cache": "rotated", "window_s": 0.5}
    assert GemmCase.model_validate(case | {"mode": "sustained"}).window_s == 0.5
    with pytest.raises(ValueError, match="only sustained cases have windows"):
        GemmCase.model_validate(case | {"mode": "burst"})


def test_a_suite_names_each_shape_once():
    entry = {"name": "a", "m": [1, 2], "n": 3, "k": 4, "origin": "test"}
    suite = parse(config.Suite, {"title": "t", "entries": [entry]}, "suite")
    assert [(shape.name, shape.m) for shape in suite.shapes] == [("a-m1", 1), ("a-m2", 2)]
    with pytest.raises(ConfigError, match="b and a-m2 are both m=2, n=3, k=4"):
        parse(config.Suite, {"title": "t", "entries": [entry, entry | {"name": "b", "m": [2]}]}, "suite")


def test_the_schema_of_campaigns_is_the_models():
    committed = json.loads((ROOT / "workflow" / "schemas" / "campaign.schema.json").read_text())
    assert committed == config.campaign_schema(), "run `make schema`"


def test_campaigns_know_the_distributions_that_can_be_drawn():
    assert set(get_args(names.Distribution)) == set(operands.NAMES)


def test_unknown_names_list_what_is_known():
    assert unknown_name("kernel", "abd", ["abc", "xyz"]) == "unknown kernel 'abd'; did you mean abc? (known: abc, xyz)"
    assert unknown_name("kernel", "q", ["abc"]) == "unknown kernel 'q' (known: abc)"


def test_equal_campaigns_have_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = parse(Campaign, _campaign(), "mine")
    path = pipeline.write_campaign(campaign)
    assert pipeline.write_campaign(parse(Campaign, _campaign(), "again")) == path
    assert pipeline.write_campaign(parse(Campaign, _campaign(seed=1), "other")) != path
    assert parse(Campaign, yaml.safe_load(path.read_text()), "read back") == campaign


def test_an_unknown_compile_target_is_named():
    entry = {"kernels": ["blackwell_tcgen05_bf16"], "suites": ["smoke"], "targets": ["b20"]}
    with pytest.raises(ValueError, match="unknown compile target 'b20'; did you mean b200"):
        pipeline.read_campaign(_campaign(compile=[entry]))


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="unknown device of this machine 'nvidia-h300'"):
        pipeline.chosen_devices(parse(Campaign, _campaign(devices=["nvidia-h300"]), "mine"))


def test_a_class_stands_for_its_devices():
    (cpu,) = pipeline.chosen_devices(parse(Campaign, _campaign(devices=["cpu"]), "mine"))
    assert cpu.device_class == "cpu"
