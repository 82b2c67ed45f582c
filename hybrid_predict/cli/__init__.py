"""The command ``hybrid-predict``."""

from hybrid_predict.cli.commands import main as main
