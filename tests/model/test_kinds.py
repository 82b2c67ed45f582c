"""Which parameters are hidden matrices, embeddings, the head, or vectors."""

from itertools import pairwise

import pytest
import torch
from cases import MODELS, TiedLM
from torch import nn
from torch.nn.utils import parametrize

from benchmarks.tasks.byte_gpt import ByteGPT
from hybrid_predict import HybridConfig, HybridEngine
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


def mlp_of(*widths):
    pairs = pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))


def conv(outputs):
    return nn.Conv2d(16, outputs, 3)


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank term."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)


def parts(**children):
    return nn.ModuleDict(children)


def frozen(module):
    return module.requires_grad_(False)


def body():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))


def lora_gpt(head):
    return parts(embed=frozen(nn.Embedding(11, 8)), a=Adapted(8, 24), b=Adapted(8, 8), head=head)


EMBEDDINGS = {
    "gpt": ["token_embedding.weight", "position_embedding.weight"],
    "tied": ["embedding.weight"],
    "vit": ["pos_embedding"],
    "vocabulary and value": ["embed.weight"],
}
CASES = {
    "mlp": (MODELS["mlp"].build, ["5.weight"]),
    "one matrix": (lambda: nn.Linear(3, 2), []),
    "conv": (MODELS["conv"].build, ["5.weight"]),
    "gpt": (gpt, ["head.weight"]),
    "attention": (lambda: parts(a=nn.MultiheadAttention(8, 2), b=nn.Linear(8, 3)), ["b.weight"]),
    "tied": (TiedLM, []),
    "vit": (ViTLike, ["head.weight"]),
    "heads of two layers in a list": (
        lambda: parts(
            trunk=mlp_of(8, 16), heads=nn.ModuleList([mlp_of(16, 16, k) for k in (3, 2)])
        ),
        ["heads.0.2.weight", "heads.1.2.weight"],
    ),
    "vocabulary and value": (
        lambda: parts(
            embed=nn.Embedding(11, 16),
            block=mlp_of(16, 16, 16),
            words=nn.Linear(16, 11),
            value=nn.Linear(16, 1),
        ),
        ["words.weight", "value.weight"],
    ),
    "classes and boxes": (
        lambda: parts(stem=nn.Conv2d(3, 16, 3), classes=conv(9), boxes=conv(4)),
        ["classes.weight", "boxes.weight"],
    ),
    "adapters, frozen head": (lambda: lora_gpt(frozen(nn.Linear(8, 11))), []),
    "adapters in a model of one child": (lambda: parts(net=lora_gpt(frozen(nn.Linear(8, 11)))), []),
    "adapters of every layer": (lambda: parts(a=Adapted(8, 8), b=Adapted(8, 3)), ["b.up.weight"]),
    "frozen head of several layers": (
        lambda: parts(body=body(), head=frozen(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)))),
        [],
    ),
    "teacher": (
        lambda: parts(body=body(), head=nn.Linear(8, 3), teacher=frozen(body())),
        ["head.weight"],
    ),
    "frozen stem": (
        lambda: parts(stem=frozen(body()), body=body(), head=nn.Linear(8, 3)),
        ["head.weight"],
    ),
    "head alone": (
        lambda: parts(net=nn.Sequential(*frozen(body()), nn.Linear(8, 3))),
        ["net.3.weight"],
    ),
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


@pytest.mark.parametrize(
    ("split", "heads"),
    [
        (lambda name, p: name.startswith("judge"), ["made.2.weight", "judge.2.weight"]),
        (lambda name, p: p.dim() > 1, ["judge.2.weight"]),
        (lambda name, p: name.startswith("made.2"), ["judge.2.weight"]),
    ],
    ids=["by network", "matrices and the rest", "an inner layer"],
)
def test_networks_of_optimizers_of_their_own_have_heads_of_their_own(split, heads):
    model = nn.ModuleDict({"made": mlp_of(6, 12, 8), "judge": mlp_of(8, 12, 1)})
    named = list(model.named_parameters())
    sides = [[p for n, p in named if bool(split(n, p)) is side] for side in (False, True)]
    optimizers = [torch.optim.SGD(side, lr=0.1) for side in sides if side]
    mapper = HybridEngine(model, optimizers, HybridConfig(total_steps=9)).mapper
    found = {n for n, kind in zip(mapper.names, mapper.kinds, strict=True) if kind == "head"}
    assert found == set(heads)


class Policy(nn.Module):
    """Two networks of one class side by side."""

    def __init__(self):
        super().__init__()
        self.policy, self.value = mlp_of(6, 8, 4), mlp_of(6, 8, 1)

    def forward(self, x):
        return self.policy(x), self.value(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("build", [MODELS["conv"].build, Policy])
def test_scripted_modules_are_classified_as_what_they_were_made_of(build):
    found = []
    for model in (parts(net=build()), parts(net=torch.jit.script(build()))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mapper = HybridEngine(model, optimizer, HybridConfig(total_steps=9)).mapper
        found.append(dict(zip(mapper.names, mapper.kinds, strict=True)))
    assert found[0] == found[1]


def test_no_parametrized_weight_is_computed():
    calls = []

    class Counted(nn.Module):
        def forward(self, weight):
            calls.append(weight)
            return weight

    model = mlp_of(8, 8, 8, 3)
    parametrize.register_parametrization(model[2], "weight", Counted())
    calls.clear()
    kinds = classify(model)
    assert calls == []
    assert kinds[id(model[2].parametrizations.weight.original)] == "hidden"
