"""``hybrid-predict schema``: current, and as strict as the commands are."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from hybrid_predict import ConfigError, HybridConfig, HybridPredict, SpectralUpdate, cli
from hybrid_predict.audit.config import AuditConfig

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "hybrid_predict.schema.json"
CALLBACK = ROOT / "examples" / "by_feature" / "lightning_cli.yaml"
AUDIT = ROOT / "examples" / "audit.yaml"

CHECKER = Draft202012Validator(json.loads(COMMITTED.read_text(encoding="utf-8")))


def test_the_committed_schema_is_current(tmp_path, capsys, refused):
    path = tmp_path / "schema.json"
    assert cli.main(["schema", "--output", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == COMMITTED.read_text(encoding="utf-8"), (
        "run: hybrid-predict schema --output docs/hybrid_predict.schema.json"
    )
    Draft202012Validator.check_schema(CHECKER.schema)
    capsys.readouterr()
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == CHECKER.schema
    line = refused("schema", "--output", "nowhere/at/all.json")
    assert "--output: expected a file that can be written" in line


@pytest.mark.parametrize("path", [CALLBACK, AUDIT], ids=lambda path: path.name)
def test_examples_fit_it(path):
    assert list(CHECKER.iter_errors(yaml.safe_load(path.read_text()))) == []


def changed(path, where, value):
    """The content of a file with another value at a dotted place."""
    content = yaml.safe_load(path.read_text())
    *above, last = where.split(".")
    place = content
    for name in above:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value
    return content


OPTIONS = "trainer.callbacks.0.init_args"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("speedupp", 2.0),
        ("speedup", "fast"),
        ("enabled", "yes please"),
        ("history_dtype", "float16"),
        ("kinds", {"net.*": "hiden"}),
        ("updates", {"hiden": "spectral"}),
        ("updates", {"hidden": "spectrl"}),
        ("updates.hidden.init_args", {"shar": 0.5}),
        ("predictors.hidden.init_args", {"decays": 0.5}),
        ("config", {"spedup": 1.0}),
    ],
)
def test_what_is_misspelt_is_found_in_the_callback(where, value):
    assert list(CHECKER.iter_errors(changed(CALLBACK, f"{OPTIONS}.{where}", value)))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("metrik", "val_loss"),
        ("mode", "least"),
        ("hybrid", {"lagg": 2}),
        ("hybrid", {"updates": {"hidden": {"class_path": "hybrid_predict.SpectralUpdate",
                                           "init_args": {"shar": 0.5}}}}),
    ],
)  # fmt: skip
def test_what_is_misspelt_is_found_in_an_audit_as_the_command_does(where, value):
    content = changed(AUDIT, f"audit.{where}", value)
    assert list(CHECKER.iter_errors(content))
    with pytest.raises((ConfigError, TypeError)):
        AuditConfig(**content["audit"])


def test_classes_of_the_users_own_are_left_to_them():
    own = {"hidden": {"class_path": "mine.Update", "init_args": {"anything": 1}}}
    assert not list(CHECKER.iter_errors(changed(CALLBACK, f"{OPTIONS}.updates", own)))
    other = [{"class_path": "lightning.pytorch.callbacks.Timer", "init_args": {"duration": "1"}}]
    assert not list(CHECKER.iter_errors(changed(CALLBACK, "trainer.callbacks", other)))


def test_it_says_what_each_field_is():
    arguments = CHECKER.schema["$defs"]["HybridConfig"]["properties"]
    assert arguments.keys() == {f.name for f in fields(HybridConfig)}
    for name, field in arguments.items():
        assert len(field["description"]) > 20, name
        assert "`" not in field["description"]


DESCRIBED = {"class_path": "hybrid_predict.SpectralUpdate", "init_args": {"share": 0.5}}


def test_objects_are_made_from_what_describes_them():
    config = HybridPredict(updates={"hidden": DESCRIBED}).config
    assert config.updates == {"hidden": SpectralUpdate(share=0.5)}
    audit = AuditConfig(hybrid={"updates": {"hidden": DESCRIBED}})
    assert audit.hybrid_config().updates == config.updates
    assert audit.training() == AuditConfig(hybrid={"updates": config.updates}).training()


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"class_path": "hybrid_predict.SpectralUpdat"}, "Did you mean SpectralUpdate"),
        ({"class_path": "nowhere.Update"}, r"updates.hidden.class_path: expected a class that can"),
        ({**DESCRIBED, "init_args": {"shar": 1}}, "updates.hidden.init_args.*mean share"),
        ({**DESCRIBED, "init_args": {"share": 2}}, "share: expected in"),
        ({"class_path": "Spectral"}, "one of spectral"),
        ({"class_path": "hybrid_predict.__version__"}, "a class"),
        ({"class_path": ".x.Y"}, "can be imported"),
        ({"class_path": "hybrid_predict.SpectralUpdate", "init_args": [1]}, "a mapping"),
        ({"class_path": "hybrid_predict.SpectralUpdate", "dict_kwargs": {}}, "dict_kwargs"),
        ({"class_path": "torch.nn.Linear"}, "a subclass of AbstractUpdate"),
    ],
)
def test_what_cannot_be_made_is_refused(described, words):
    with pytest.raises(ConfigError, match=words):
        HybridPredict(updates={"hidden": described})
