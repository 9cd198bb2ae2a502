"""Attention over a KV cache whose windows are packed at 2, 4 or 8 bits: quantize or fit, unpack, attend.

Every operation has a plain PyTorch form that runs anywhere and a Triton form for NVIDIA GPUs; `use_backend` overrides
the choice. The packed format is drawn in the README beside this package.
"""

from wq_kernels.dispatch import Backend, choose_backend, use_backend
from wq_kernels.layout import Block, Segment
from wq_kernels.ops.attend import attend
from wq_kernels.ops.fit import FITTED_BITS, fit
from wq_kernels.ops.fit.compensation import Compensation
from wq_kernels.ops.pack import pack
from wq_kernels.ops.unpack import unpack

__all__ = [
    "FITTED_BITS",
    "Backend",
    "Block",
    "Compensation",
    "Segment",
    "attend",
    "choose_backend",
    "fit",
    "pack",
    "unpack",
    "use_backend",
]
