"""Wrong configurations get one line that names field, value and remedy."""

from __future__ import annotations

import typing

import pytest

from asyncopd.config.loading import dump, load, validate
from asyncopd.config.root import SftConfig, TrainConfig
from asyncopd.config.section import Section
from asyncopd.errors import UserError

MINIMAL = {"student": {"model": "a"}, "teacher": {"model": "b"}, "environment": {"use": "calculator"}}


def _error(data) -> str:
    with pytest.raises(UserError) as caught:
        validate(data, TrainConfig)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shceduler": {}}, "unknown key 'shceduler', did you mean 'scheduler'?"),
        ({"learner": {"optimizer": {"lrr": 1}}}, "unknown key 'learner.optimizer.lrr', did you mean 'lr'?"),
        ({"run": {"seed": "x"}}, "'run.seed'"),
        ({"run": {"steps": 0}}, "'run.steps'"),
        ({"student": {}}, "'student.model' is required"),
        ({"scheduler": {"batch_size": 8, "group_size": 3}}, "group_size 3 does not divide batch_size 8"),
        ({"scheduler": {"publish_every": 4, "max_staleness": 2}}, "publish_every 4 is above max_staleness + 1 = 3"),
        ({"scoring": {"cache": "http://x"}}, "'scoring.cache'"),
        ({"learner": {"optimizer": {"lr": float("nan")}}}, "'learner.optimizer.lr'"),
        ({"engine": {"urls": ["http://a:8000"]}}, "set use to vllm_server"),
        ({"engine": {"use": "vllm_server", "urls": ["http://a:8000"], "replicas": 2}}, "replicas 2 are not started"),
        ({"engine": {"use": "vllm_server", "urls": ["http://a:8000"] * 2}}, "name a server twice"),
        ({"engine": {"use": "vllm_server", "api_key_env": "KEY"}}, "api_key_env is for the servers at urls"),
    ],
)
def test_each_mistake_is_named_with_its_field(change, said):
    assert said in _error({**MINIMAL, **change})


def test_all_mistakes_are_said_at_once():
    message = _error({**MINIMAL, "run": {"seed": -1, "steps": "many"}})
    assert "'run.seed'" in message
    assert "'run.steps'" in message


def test_overrides_apply_in_order_and_make_missing_sections(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("student: {model: a}\nteacher: {model: b}\nenvironment: {use: calculator}\n")
    config = load(path, ["run.steps=5", "run.steps=7", "environment.options.depth=[1, 2]"], TrainConfig)
    assert config.run.steps == 7
    assert config.environment.options == {"depth": [1, 2]}


@pytest.mark.parametrize("override", ["run.steps", "=3", "run..steps=3"])
def test_a_malformed_override_is_refused(tmp_path, override):
    path = tmp_path / "c.yaml"
    path.write_text("student: {model: a}\n")
    with pytest.raises(UserError, match=r"section.field=value"):
        load(path, [override], TrainConfig)


@pytest.mark.parametrize(("text", "said"), [("a: [", "is not YAML"), ("- 1", "holds a list"), ("", "holds a NoneType")])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text, said):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load(path, [], TrainConfig)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.yaml: there is no such file"):
        load(tmp_path / "nowhere.yaml", [], TrainConfig)


def test_a_dumped_configuration_loads_equal(tmp_path):
    config = validate({**MINIMAL, "run": {"dir": "x y", "seed": 3}}, TrainConfig)
    path = tmp_path / "c.yaml"
    path.write_text(dump(config))
    assert load(path, [], TrainConfig) == config


def test_an_adapter_can_travel_only_where_one_is_trained():
    with pytest.raises(UserError, match=r"weights\.lora is 'adapter', and none is trained; set learner\.lora"):
        validate({**MINIMAL, "weights": {"lora": "adapter"}}, TrainConfig)
    config = validate({**MINIMAL, "weights": {"lora": "adapter"}, "learner": {"lora": {"rank": 8}}}, TrainConfig)
    assert (config.learner.lora.rank, config.learner.lora.target_modules) == (8, "all-linear")


def _below(field):
    """Return the sections that a field may hold."""
    kinds = (field.annotation, *typing.get_args(field.annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


def _sections(kind):
    yield kind
    for field in kind.model_fields.values():
        for section in _below(field):
            yield from _sections(section)


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_every_field_is_documented_or_a_section(kind):
    undocumented = [
        f"{section.__name__}.{name}"
        for section in _sections(kind)
        for name, field in section.model_fields.items()
        if field.description is None and not _below(field)
    ]
    assert undocumented == []
