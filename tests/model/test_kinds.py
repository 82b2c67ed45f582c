"""Which parameters are hidden matrices, embeddings, the head, or vectors."""

import pytest
import torch
from cases import MODELS, TiedLM
from torch import nn

from benchmarks.tasks.language import ByteGPT
from hybrid_predict.model.kinds import classify


class ViTLike(nn.Module):
    """A patch embedding, learned positions as a bare parameter, one encoder layer, a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, stride=4)
        self.pos_embedding = nn.Parameter(torch.zeros(1, 4, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.head = nn.Linear(8, 5)


def gpt():
    return ByteGPT(layers=2, heads=2, width=8, context=16, vocab=11)


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank term."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)


def parts(**children):
    return nn.ModuleDict(children)


EMBEDDINGS = {
    "gpt": ["token_embedding.weight", "position_embedding.weight"],
    "tied": ["embedding.weight"],
    "vit": ["pos_embedding"],
}
CASES = {
    "mlp": (MODELS["mlp"].build, ["5.weight"]),
    "conv": (MODELS["conv"].build, ["5.weight"]),
    "gpt": (gpt, ["head.weight"]),
    "attention": (lambda: parts(a=nn.MultiheadAttention(8, 2), b=nn.Linear(8, 3)), ["b.weight"]),
    "tied": (TiedLM, []),
    "vit": (ViTLike, ["head.weight"]),
    "adapters of every layer": (lambda: parts(a=Adapted(8, 8), b=Adapted(8, 3)), ["b.up.weight"]),
}
"""A model, and its trained heads; other trained matrices are hidden or :data:`EMBEDDINGS`."""


@pytest.mark.parametrize("name", CASES)
def test_kinds_follow_module_types_and_shapes_and_the_head_what_is_trained(name):
    build, heads = CASES[name]
    model = build()
    kinds = classify(model)
    assert len(kinds) == len(list(model.parameters()))
    wanted = dict.fromkeys(heads, "head") | dict.fromkeys(EMBEDDINGS.get(name, ()), "embedding")
    for label, p in model.named_parameters():
        if p.requires_grad:
            other = "hidden" if p.dim() > 1 else "vector"
            assert kinds[id(p)] == wanted.get(label, other), label


def test_whole_words_of_a_bare_parameter_s_name_say_embedding():
    tables, others = ["posEmbedding", "cls_tokens", "positions"], ["transpose", "unembed"]
    model = nn.ModuleDict({"inner": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    for name in (*tables, *others):
        model.register_parameter(name, nn.Parameter(torch.zeros(3, 4)))
    kinds = classify(model)
    assert [kinds[id(getattr(model, name))] for name in tables] == ["embedding"] * 3
    assert [kinds[id(getattr(model, name))] for name in others] == ["hidden"] * 2
