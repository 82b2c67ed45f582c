"""torch_geometric: a graph isomorphism network, trained with Lightning."""

from typing import Any

import torch
from lightning.fabric import seed_everything
from torch import nn
from torch_geometric.data.lightning import LightningDataset
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.datasets.motif_generator import CycleMotif, HouseMotif
from torch_geometric.nn import GIN, MLP, global_add_pool

from benchmarks.clients import Callbacks, fitted, learner, validated

GRAPHS = 2000
TRAINED = 1600
FEATURES = 10


def data(seed: int) -> Any:
    seed_everything(seed, verbose=False)
    graphs: list[Any] = []
    for label, motif in enumerate((HouseMotif(), CycleMotif(5))):
        made = ExplainerDataset(BAGraph(20, 1), motif, 1, GRAPHS // 2)
        for graph in made:
            graph.x = torch.full((graph.num_nodes, FEATURES), 0.1)
            graph.y = label
            graphs.append(graph)
    mixed = [graphs[k] for k in torch.randperm(GRAPHS)]
    return LightningDataset(mixed[:TRAINED], mixed[TRAINED:], batch_size=64, num_workers=0)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    gnn = GIN(FEATURES, 64, 3, dropout=0.5, jk="cat")
    net = nn.ModuleDict(
        {"gnn": gnn, "classifier": MLP([64, 64, 2], norm="batch_norm", dropout=0.5)}
    )

    def loss(net: Any, batch: Any) -> Any:
        x = net["gnn"](batch.x, batch.edge_index)
        scores = net["classifier"](global_add_pool(x, batch.batch, batch.num_graphs))
        return nn.functional.cross_entropy(scores, batch.y)

    def judge(net: Any, batch: Any) -> Any:
        return loss(net, batch), batch.num_graphs

    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    return fitted(learner(net, adam, loss, judge), [data], length, callbacks)


quality = validated("judged")
