"""Compiles every Triton kernel for a GPU that need not be there: `python compile_kernels.py CAPABILITY K,V [K,V ...]`.

A process of its own, since kernels that were imported for the interpreter cannot be compiled. Attention takes segments
of the given key and value bits.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wq_kernels.launch import SegmentShape, code_rows, fits_registers
from wq_kernels.ops.attend.kernel import attend_kernel, merge_kernel
from wq_kernels.ops.fit.kernel import FIT_CHANNELS, code_kernel, fit_kernel
from wq_kernels.ops.fit.naive import LEAST_SPREAD, LEAST_WEIGHT, ROUNDS, STARTS
from wq_kernels.ops.pack.kernel import pack_kernel
from wq_kernels.ops.unpack.kernel import unpack_kernel

D, WINDOW = 128, 32


def compile_for(capability: int, kernel: Any, constants: dict[str, Any], **types: Any) -> None:
    """Compile down to machine code; arguments without a type are int32."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
    print(kernel.__name__, len(made.asm["cubin"]))


def block(bits: int) -> tuple[str, str, str]:
    """Types of (data, scale, minimum)."""
    return ("*bf16", "*bf16", "*bf16") if bits == 16 else ("*i16", "*fp16", "*fp16")


def main(capability: int, widths: list[tuple[int, int]]) -> None:
    """All kernels."""
    shapes = [SegmentShape(key, value, WINDOW, 3) for key, value in widths]
    compile_for(
        capability,
        attend_kernel,
        {
            "KEY_BITS": tuple(key for key, _ in widths),
            "VALUE_BITS": tuple(value for _, value in widths),
            "WINDOWS": (WINDOW,) * len(widths),
            "TILES": tuple(shape.tile_tokens for shape in shapes),
            "COSTS": tuple(shape.tile_cost for shape in shapes),
            "IN_REGISTERS": tuple(fits_registers(shape, D, 8) for shape in shapes),
            "HEADS": 4,
            "RAW_COST": 480,
            "RAW_TILE": 16,
            "D": D,
            "BLOCK_C": D,
            "BLOCK_M": 8,
            "STAGES": 3,
            "LENGTH_ON_DEVICE": True,
            "USE_MASK": True,
            "DTYPE": tl.float16,
            "USE_ASSEMBLY": True,
            "PREFETCH": capability >= 90,
        },
        **dict.fromkeys(("query", "raw_key", "raw_value"), "*bf16"),
        **dict.fromkeys(("output", "lse", "scratch"), "*fp32"),
        keys=tuple(block(key) for key, _ in widths),
        values=tuple(block(value) for _, value in widths),
        extents=(("i32",) * 4,) * len(widths),
        raw_extent=("i32",) * 4,
        raw_mask="*i1",
        raw_length="*i32",
        tops="i64",
        scaling="fp32",
    )
    partials = {"partial": "*fp32", "lse": "*fp32", "output": "*bf16"}
    compile_for(capability, merge_kernel, {"D": D, "BLOCK_D": 32, "BLOCK_S": 16}, **partials)
    stored = {"words": "*i16", "scale": "*fp16", "minimum": "*fp16", "limit": "fp32"}
    for bits in (2, 4, 8):
        words = D * bits // 16
        shape = {"BITS": bits, "WINDOW": WINDOW, "PLANES": 16 // bits, "C": words, "BLOCK_C": words, "ROWS": 4}
        compile_for(capability, pack_kernel, {**shape, "INTEGER_ZERO": bits == 2}, x="*bf16", index="*i64", **stored)
        compile_for(capability, unpack_kernel, shape, output="*bf16", **stored)
        if bits == 8:
            continue
        shape |= {"ROWS": code_rows(D, WINDOW), "COMPENSATED": True}
        compile_for(capability, code_kernel, shape, x="*bf16", index="*i64", order="*i64", shares="*fp32", **stored)
    shape = {"BITS": 2, "WINDOW": WINDOW, "D": D, "BLOCK_S": WINDOW, "BLOCK_D": FIT_CHANNELS}
    settings = {"STARTS": STARTS, "ROUNDS": ROUNDS, "LEAST_WEIGHT": LEAST_WEIGHT, "LEAST_SPREAD": LEAST_SPREAD}
    compile_for(capability, fit_kernel, shape | settings, x="*bf16", index="*i64", weights="*fp32", **stored)


if __name__ == "__main__":
    pairs = [tuple(int(bits) for bits in pair.split(",")) for pair in sys.argv[2:]]
    main(int(sys.argv[1]), [(key, value) for key, value in pairs])
