"""Published packages that train with the plug-in, by name.

Add a client: one file with a final subclass of `Client` and an instance of it, and one line here.
"""

from __future__ import annotations

from importlib import import_module

from benchmarks.clients.base import Client

CLIENTS = {
    "scvi": "scvi_tools",
    "chemprop": "chemprop",
    "nhits": "nhits",
    "tide": "tide",
    "fusion": "pytorch_forecasting",
    "deeptab": "deeptab",
}
"""Module of each client by name."""


def client(name: str) -> Client:
    """Return a client by name."""
    found: Client = import_module(f"benchmarks.clients.{CLIENTS[name]}").CLIENT
    return found
