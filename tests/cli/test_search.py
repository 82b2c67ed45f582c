"""``hybrid-predict audit --search``: what is printed, exit statuses, and going on."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from audit_file import FILE, seen, with_audit, write

from hybrid_predict import cli
from hybrid_predict.cli.audit import COMMAND
from hybrid_predict.cli.screen import Screen

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden"),
]


def test_search_of_a_file(work, capsys):
    file = write(with_audit(speedups=[3.0]))
    assert cli.main(["audit", file, "--search", "--plan"]) == 0
    assert "At most 4 runs, for 2 tests of candidates; 0 done" in capsys.readouterr().out
    assert not (work / "hybrid-predict-audit").exists()
    assert cli.main(["audit", file, "--search"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    for said in (
        "audit --search: at most 4 runs",
        "1/4 full, seed 0: 18 full steps",
        "2/4 short at speedup 3, seed 0: 6 full steps",
        "corrected at speedup 3: not enough seeds to tell",
        "4/4 hybrid at speedup 3, seed 0:",
        "Trainer(max_steps=18) # no saving at equal quality was shown; fewer than 5 seeds",
        "hybrid-predict-audit/search.json",
    ):
        assert said in " ".join(out.split())
    assert cli.main(["audit", file, "--search"]) == 3
    assert "Nothing was trained" in capsys.readouterr().out
    assert cli.main(["audit", file, "--search", "--plan"]) == 0
    assert "4 done, at most 0 to be trained" in capsys.readouterr().out
    assert cli.main(["audit", file, "--search", "--plan", "--overwrite"]) == 0
    assert "0 done, at most 4 to be trained" in capsys.readouterr().out
    before = len(seen())
    assert cli.main(["audit", file, "--search", "--overwrite"]) == 3
    assert len(seen()) == before + 4


def test_a_search_that_is_stopped_at_once_says_how_to_go_on(work, monkeypatch, capsys):
    def stop(self: Any, full_steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "stepped", stop)
    assert cli.main(["audit", write(FILE), "--search"]) == 130
    said = "Stopped. What was finished is kept; the same command, without --overwrite, goes on.\n"
    assert said in capsys.readouterr().out


def test_a_reader_who_has_enough_is_no_failed_training(work, monkeypatch, capsys):
    def closed(options: Any) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("hybrid_predict.cli.audit._run", closed)
    with pytest.raises(BrokenPipeError):
        COMMAND.run(Namespace(threads=None, file=write(FILE)))
    assert capsys.readouterr().err == ""


def test_a_line_to_paste_is_printed_as_it_is(work, capsys):
    line = "Trainer(max_steps=9, callbacks=[HybridPredict(kinds={'a': [b]})])"
    with Screen([1.0], str) as screen:
        screen.say(line, soft_wrap=True)
    assert f"{line}\n" in capsys.readouterr().out
