"""Kinds of a network's parameters as the graphs of its losses show them."""

from hybrid_predict.torch.graph import GraphFindings
from hybrid_predict.torch.kinds import classify, matrix_index, resolve


def resolved(model, losses, owners=None, after=True):
    """Kinds of the trained matrices by name, and what was not seen."""
    found, about = GraphFindings(), matrix_index(model, owners)
    for loss in losses if isinstance(losses, list) else [losses]:
        loss.backward() if after else None
        found.add(loss, about)
        loss.backward() if not after else None
    moved = {id(p) for p in model.parameters() if p.grad is not None}
    kinds, unseen = resolve(model, classify(model, owners), found, about, moved)
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    by_name = {name: kinds[key] for key, name in named.items() if kinds[key] != "vector"}
    return by_name, sorted(named[key] for key in unseen)
