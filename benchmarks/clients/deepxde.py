"""DeepXDE: a physics-informed network for the Helmholtz equation."""

from typing import Any

import deepxde as dde
import numpy as np
import torch

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import engine_for

WAVE = 2 * np.pi


def data(seed: int) -> Any:
    def residual(x: Any, y: Any) -> Any:
        waves = torch.sin(WAVE * x[:, :1]) * torch.sin(WAVE * x[:, 1:])
        laplacian = sum(dde.grad.hessian(y, x, i=i, j=i) for i in (0, 1))
        return -laplacian - WAVE**2 * y - WAVE**2 * waves

    dde.config.set_random_seed(seed)
    square = dde.geometry.Rectangle([0, 0], [1, 1])
    edge = dde.icbc.DirichletBC(square, solution, lambda _, on_boundary: on_boundary)
    return dde.data.PDE(square, residual, edge, 400, 80, num_test=3600, solution=solution)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    net = dde.nn.FNN([2, *[150] * 3, 1], "sin", "Glorot uniform")
    model = dde.Model(data, net)
    model.compile("adam", lr=1e-3, loss_weights=[1, 100])

    class Steps(dde.callbacks.Callback):
        def __init__(self, settings: Any) -> None:
            super().__init__()
            self.engine = engine_for(settings, net, model.opt, length)

        def on_batch_begin(self) -> None:
            self.engine.before_step()

        def on_batch_end(self) -> None:
            self.engine.after_step()
            model.stop_training = self.engine.done

    model.train(iterations=length, callbacks=[Steps(each) for each in callbacks], verbose=0)
    return model


def quality(trained: Any, data: Any) -> float:
    known = solution(data.test_x)
    error = trained.predict(data.test_x) - known
    return float(np.linalg.norm(error) / np.linalg.norm(known))


def solution(x: Any) -> Any:
    """Return the exact solution at points (n, 2)."""
    return np.sin(WAVE * x[:, :1]) * np.sin(WAVE * x[:, 1:])
