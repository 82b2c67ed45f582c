"""What ``class_path`` describes is only called once it is known to be an update or a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from audit_file import with_audit, write
from lightning.pytorch.cli import LightningCLI
from lightning_models import Net

from hybrid_predict import ConfigError, HybridConfig, HybridPredict, SpectralUpdate, cli
from hybrid_predict.audit.config import AuditConfig

FOREIGN = {
    "a function": {"class_path": "os.mkdir", "init_args": {"path": "called"}},
    "a class": {"class_path": "zipfile.ZipFile", "init_args": {"file": "called", "mode": "w"}},
}
PLACES = {
    "argument": lambda chosen: HybridPredict(**chosen),
    "fields": lambda chosen: HybridPredict(config=chosen),
    "configuration": lambda chosen: HybridPredict(config=HybridConfig(**chosen)),
    "audit": lambda chosen: AuditConfig(hybrid=chosen),
}


def described(field: str, what: str) -> dict[str, Any]:
    return {field: {"hidden": FOREIGN[what]}}


def refused(field: str) -> str:
    base = {"updates": "AbstractUpdate", "predictors": "AbstractPredictor"}[field]
    return f"{field}.hidden.class_path: expected a subclass of {base}, got"


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("field", ["updates", "predictors"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_else_is_called(work: Path, place: str, field: str, what: str) -> None:
    with pytest.raises(ConfigError, match=refused(field)):
        PLACES[place](described(field, what))
    assert not Path("called").exists()


@pytest.mark.parametrize("command", [["audit", "--plan"], ["audit"], ["doctor"]], ids=" ".join)
@pytest.mark.parametrize("what", FOREIGN)
def test_nothing_else_is_called_by_commands(
    work: Path, command: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(with_audit(hybrid=described("predictors", what)))
    assert cli.main([*command, file]) == 2
    said = capsys.readouterr()
    assert refused("predictors") in said.out + said.err
    assert not Path("called").exists()


def lightning_cli(content: Mapping[str, Any], patch: pytest.MonkeyPatch) -> HybridPredict:
    """The callback that LightningCLI makes of a file."""
    patch.setattr("sys.argv", ["train"])
    options: Any = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    made = LightningCLI(
        Net, run=False, args=["--config", write(content)], save_config_callback=None,
        seed_everything_default=False, parser_kwargs={"exit_on_error": False},
        trainer_defaults={**options, "enable_model_summary": False, "accelerator": "cpu"},
    )  # fmt: skip
    return next(c for c in made.trainer.callbacks if isinstance(c, HybridPredict))


def with_callback(arguments: Mapping[str, Any]) -> dict[str, Any]:
    own = {"class_path": "hybrid_predict.HybridPredict", "init_args": arguments}
    return {"trainer": {"callbacks": [own]}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrapped", [False, True], ids=["arguments", "config"])
@pytest.mark.parametrize("what", FOREIGN)
def test_nothing_else_is_called_by_a_lightning_cli(
    work: Path, what: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = described("updates", what)
    content = with_callback({"config": chosen} if wrapped else chosen)
    with pytest.raises(Exception, match=refused("updates")):
        lightning_cli(content, monkeypatch)
    assert not Path("called").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrapped", [False, True], ids=["arguments", "config"])
def test_a_lightning_cli_makes_updates(
    work: Path, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"class_path": "hybrid_predict.SpectralUpdate", "init_args": {"share": 0.5}}
    chosen = {"updates": {"hidden": own}}
    content = with_callback({"config": chosen} if wrapped else chosen)
    callback = lightning_cli(content, monkeypatch)
    assert callback.config.updates == {"hidden": SpectralUpdate(share=0.5)}


@pytest.mark.parametrize(
    ("hybrid", "words"),
    [
        ({"updates": {"hiden": {"class_path": "only_imported.Update"}}}, "Did you mean hidden"),
        ({"updates": {"hidden": {"class_path": "only_imported.Update", "args": {}}}}, "'args'"),
        ({"updates": {"hidden": {"class_path": "only_imported.X", "init_args": 3}}}, "a mapping"),
        ({"kinds": 3, "updates": {"hidden": {"class_path": "only_imported.X"}}}, "kinds"),
    ],
    ids=["kind", "key", "arguments", "other field"],
)
@pytest.mark.parametrize("place", PLACES)
def test_no_module_is_imported_for_what_is_wrong_without_it(
    work: Path, place: str, hybrid: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(work))
    (work / "only_imported.py").write_text("open('called', 'w').close()")
    with pytest.raises(ConfigError, match=words):
        PLACES[place](hybrid)
    assert not Path("called").exists()


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden")
def test_arms_do_not_call_what_arguments_of_updates_describe(work: Path) -> None:
    """Lightning's parser makes the objects of each arm; the section audit is not among them."""
    (work / "mine.py").write_text(UPDATE)
    own = {"class_path": "mine.Update", "init_args": {"note": FOREIGN["a function"]}}
    content = with_audit(hybrid={"warmup_steps": 5, "updates": {"hidden": own}})
    assert cli.main(["audit", write(content)]) == 3
    assert not Path("called").exists()


UPDATE = '''
from hybrid_predict import SpectralUpdate

class Update(SpectralUpdate):
    """Keeps a note."""

    def __init__(self, note=None):
        super().__init__()
        object.__setattr__(self, "note", note)
'''
