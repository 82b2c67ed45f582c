"""What ``class_path`` describes is only called once it is known to be an update or a predictor."""

from argparse import ArgumentError
from pathlib import Path

import pytest
from audit_file import with_audit, write
from lightning.pytorch.cli import LightningCLI
from lightning_models import Net

from hybrid_predict import HybridPredict, SpectralUpdate, cli
from hybrid_predict.audit.file import importable, read_audit
from hybrid_predict.errors import ConfigError

FOREIGN = {"class_path": "os.mkdir", "init_args": {"path": "called"}}


@pytest.fixture(autouse=True)
def nothing_is_called(work):
    yield
    assert not Path("called").exists()


def audit_of(**hybrid):
    """An audit of a file."""
    with importable():
        return read_audit(write(with_audit(hybrid=hybrid)))


BASES = {"updates": "AbstractUpdate", "predictors": "AbstractPredictor"}


@pytest.mark.parametrize("field", BASES)
def test_a_file_of_an_audit_calls_nothing_else(field):
    words = f"hybrid.{field}.hidden.class_path: expected a subclass of {BASES[field]}, got"
    with pytest.raises(ConfigError, match=words):
        audit_of(**{field: {"hidden": FOREIGN}})


def test_a_search_calls_nothing_else():
    with pytest.raises(ConfigError, match=r"directions\.1\.class_path: expected a subclass of"):
        read_audit(write(with_audit(directions=["spectral", FOREIGN])))


@pytest.mark.parametrize("command", [["audit", "--plan"], ["audit"], ["doctor"]], ids=" ".join)
def test_nothing_else_is_called_by_commands(command, refused):
    file = write(with_audit(hybrid={"predictors": {"hidden": FOREIGN}}))
    assert "expected a subclass of AbstractPredictor" in refused(*command, file)


def lightning_cli(content, patch):
    """The callback that LightningCLI makes of a file."""
    patch.setattr("sys.argv", ["train"])
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    program = LightningCLI(
        Net, run=False, args=["--config", write(content)], save_config_callback=None,
        seed_everything_default=False, parser_kwargs={"exit_on_error": False},
        trainer_defaults={**options, "enable_model_summary": False, "accelerator": "cpu"},
    )  # fmt: skip
    return next(c for c in program.trainer.callbacks if isinstance(c, HybridPredict))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lightning_cli_makes_updates_and_nothing_else(monkeypatch):
    def content(described):
        arguments = {"updates": {"hidden": described}}
        callback = {"class_path": "hybrid_predict.HybridPredict", "init_args": arguments}
        return {"trainer": {"callbacks": [callback]}}

    update = {"class_path": "hybrid_predict.SpectralUpdate", "init_args": {"share": 0.5}}
    callback = lightning_cli(content(update), monkeypatch)
    assert callback.config.updates == {"hidden": SpectralUpdate(share=0.5)}
    with pytest.raises(ArgumentError, match=r"os\.mkdir .* not .* a subclass of AbstractUpdate"):
        lightning_cli(content(FOREIGN), monkeypatch)


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
def test_no_module_is_imported_for_what_is_wrong_without_it(work, hybrid, words, monkeypatch):
    monkeypatch.syspath_prepend(str(work))
    (work / "only_imported.py").write_text("open('called', 'w').close()")
    with pytest.raises(ConfigError, match=words):
        audit_of(**hybrid)


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden")
def test_arms_do_not_call_what_arguments_of_updates_describe(work):
    """Lightning's parser makes the objects of each arm; the section audit is not among them."""
    (work / "mine.py").write_text(UPDATE)
    update = {"class_path": "mine.Update", "init_args": {"note": FOREIGN}}
    content = with_audit(hybrid={"warmup_steps": 5, "updates": {"hidden": update}})
    assert cli.main(["audit", write(content)]) == 3


UPDATE = '''
from hybrid_predict import SpectralUpdate

class Update(SpectralUpdate):
    """Keeps a note."""

    def __init__(self, note=None):
        super().__init__()
        object.__setattr__(self, "note", note)
'''
