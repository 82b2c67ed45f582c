"""Kernels on torch tensors: in place, one fused call per list where torch has one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.backends.base import NEWTON_SCHULZ, AbstractBackend

_HALF = (torch.float16, torch.bfloat16)


def is_half(tensor: Tensor) -> bool:
    """Whether a tensor has 16-bit entries."""
    return tensor.dtype in _HALF


def wide(tensor: Tensor) -> Tensor:
    """The tensor itself, or its 16-bit entries in 32 bits."""
    return tensor.float() if is_half(tensor) else tensor


class TorchBackend(AbstractBackend[Tensor]):
    """In-place kernels; nothing here waits for the device."""

    name = "torch"

    def zeros(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Zero tensors of the same shapes; half-precision inputs give 32-bit history."""
        return [torch.zeros_like(x, dtype=torch.float32 if is_half(x) else x.dtype) for x in like]

    def copy(self, target: Sequence[Tensor], source: Sequence[Tensor]) -> list[Tensor]:
        """Target := source, element by element."""
        if target:
            torch._foreach_copy_(list(target), list(source))
        return list(target)

    def difference(self, target: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
        """Target := other - target, the displacement when target holds the weights before."""
        if not target or target[0].device.type == "cpu":
            for x, y in zip(target, other, strict=True):
                torch.sub(y, x, out=x)
        else:
            torch._foreach_sub_(list(target), list(other))
            torch._foreach_neg_(list(target))
        return list(target)

    def add_scaled(
        self, target: Sequence[Tensor], other: Sequence[Tensor], factors: Sequence[float]
    ) -> list[Tensor]:
        """Target[k] := target[k] + factors[k] * other[k]."""
        if not target or target[0].device.type == "cpu":
            # The CPU has no fused list kernels, so the loop saves the temporary for free.
            for x, y, factor in zip(target, other, factors, strict=True):
                x.add_(y, alpha=factor)
        else:
            torch._foreach_add_(list(target), torch._foreach_mul(list(other), list(factors)))
        return list(target)

    def average(
        self, mean: Sequence[Tensor], value: Sequence[Tensor], decay: float
    ) -> list[Tensor]:
        """Mean := decay * mean + (1 - decay) * value."""
        if mean:
            if all(m.dtype == v.dtype for m, v in zip(mean, value, strict=True)):
                torch._foreach_lerp_(list(mean), list(value), 1.0 - decay)
            else:
                torch._foreach_mul_(list(mean), decay)
                torch._foreach_add_(list(mean), list(value), alpha=1.0 - decay)
        return list(mean)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Frobenius norm of each tensor, shape (K,), at least 32-bit."""
        if not arrays:
            return torch.zeros(0)
        # Half precision must not bound the result: 16-bit floats end at 65504.
        dtype = None if any(x.dtype == torch.float64 for x in arrays) else torch.float32
        return torch.stack([n.float() for n in torch._foreach_norm(list(arrays), 2, dtype)])

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Inner product of each pair of tensors, shape (K,), at least 32-bit."""
        if not left:
            return torch.zeros(0)
        pairs = zip(left, right, strict=True)
        return torch.stack(
            [torch.dot(x.reshape(-1).float(), y.reshape(-1).float()) for x, y in pairs]
        )

    def rescale(self, target: Sequence[Tensor], lengths: Tensor) -> list[Tensor]:
        """Target[k] := lengths[k] * target[k] / |target[k]|; see the base."""
        if target:
            tiny = torch.finfo(torch.float32).tiny
            scales = lengths / self.norms(target).clamp_min(tiny)
            torch._foreach_mul_(list(target), list(scales.unbind()))
        return list(target)

    def flatten_spectrum(
        self, target: Sequence[Tensor], source: Sequence[Tensor], iterations: int
    ) -> list[Tensor]:
        """Target[k] := |M| O / |O| with O the orthogonal factor of M = source[k]; see the base."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for k, x in enumerate(source):
            if x.dim() < 2:
                target[k].copy_(x)
                continue
            groups[(x.shape[0], x[0].numel(), x.device)].append(k)
        for members in groups.values():
            stack = torch.stack([source[k].reshape(source[k].shape[0], -1) for k in members])
            for k, matrix in zip(members, _flatten(stack, iterations), strict=True):
                target[k].copy_(matrix.reshape(target[k].shape))
        return list(target)


def _flatten(stack: Tensor, iterations: int) -> Tensor:
    a, b, c = NEWTON_SCHULZ
    tiny = torch.finfo(torch.float32).tiny
    # Newton-Schulz tolerates half precision, which is what makes it cheap on accelerators.
    working = torch.bfloat16 if stack.is_cuda else torch.float32
    length = torch.linalg.vector_norm(stack.float(), dim=(-2, -1), keepdim=True)
    x = (stack.float() / length.clamp_min(tiny)).to(working)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = (x.mT if tall else x).float()
    return x * (length / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(tiny))
