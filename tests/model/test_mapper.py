"""Parameters by name: visited, transformed, moved and put back."""

import pytest
import torch
from cases import MODELS
from loops import same_bits, weights
from torch import nn

from hybrid_predict import ParameterMapper
from hybrid_predict.errors import ConfigError, UnsupportedSetupError


@pytest.fixture
def net():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return model, ParameterMapper(model)


def test_override_by_glob_wins_and_the_first_match_counts():
    overrides = {"3.*": "vector", "*.weight": "embedding"}
    mapper = ParameterMapper(MODELS["mlp"].build(), None, overrides)
    kinds = dict(zip(mapper.names, mapper.kinds, strict=True))
    assert kinds["3.weight"] == kinds["3.bias"] == "vector"
    assert kinds["0.weight"] == kinds["5.weight"] == "embedding"
    assert kinds["0.bias"] == "vector"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, {"layers.*": "hidden"}), r"kinds: expected .*got 'layers\.\*'.*look like 'weight"),
        (([],), r"optimizer: expected .*at least one"),
        ((nn.Linear(2, 2).parameters(),), "optimizer: expected parameters of this model"),
    ],
)
def test_what_fits_no_parameter_of_the_model_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        ParameterMapper(nn.Linear(2, 2), *given)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_module_without_its_first_input_is_refused():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(UnsupportedSetupError, match="Run one batch through the model"):
        ParameterMapper(model)


def test_tied_weights_are_mapped_once_and_those_of_no_optimizer_not_at_all():
    tied, partly = (MODELS[name].build() for name in ("tied", "partly-trained"))
    twice = ParameterMapper(tied, [*tied.parameters(), tied.head.weight])
    assert twice.names == ("embedding.weight", "hidden.weight", "hidden.bias")
    trained = [p for p in partly.parameters() if p.requires_grad]
    assert not any(n.startswith("frozen") for n in ParameterMapper(partly, trained).names)


def test_a_visit_shows_every_parameter_by_name(net):
    model, mapper = net
    seen = {}
    mapper.visit(lambda name, tensor: seen.update({name: tensor.clone()}))
    assert same_bits(seen, weights(model))
    mapper.visit(lambda name, tensor: tensor * 2)
    assert same_bits(seen, weights(model))


def test_a_map_gives_every_parameter_new_values(net):
    model, mapper = net
    before = weights(model)
    mapper.map(lambda name, tensor: 2 * tensor if name.endswith("weight") else tensor + 1)
    for name, p in model.named_parameters():
        wanted = 2 * before[name] if name.endswith("weight") else before[name] + 1
        assert torch.equal(p, wanted)
        assert p.requires_grad


def test_a_map_to_something_else_is_refused_with_the_weights_intact(net):
    model, mapper = net
    before = weights(model)
    for wrong, words in ((3.0, "a tensor for 1.bias, got 'float'"), (torch.ones(1), "shape")):
        with pytest.raises(ConfigError, match=f"fn: expected {words}"):
            mapper.map(lambda name, tensor, new=wrong: new if name == "1.bias" else tensor + 1)
        assert same_bits(weights(model), before)


def test_a_map_whose_function_writes_or_raises_leaves_the_weights_intact(net):
    model, mapper = net
    before = weights(model)

    def failing(name, tensor):
        tensor.zero_()
        if name == "1.bias":
            raise ZeroDivisionError
        return tensor

    with pytest.raises(ZeroDivisionError):
        mapper.map(failing)
    assert same_bits(weights(model), before)
