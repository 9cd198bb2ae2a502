"""The PTX that unpacks codes, run line by line: Triton's interpreter cannot, and a GPU is not everywhere."""

import numpy as np
import pytest

pytest.importorskip("triton")

from wq_kernels.ops.attend.planes import UNPACK_2, UNPACK_4, UNPACK_8


def run(assembly: str, operands: dict[str, int]) -> dict[str, int]:
    """Registers after the program; every register is 32 bits, halves are two float16."""
    registers = dict(operands)

    def read(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    def halves(name: str) -> np.ndarray:
        return np.array([read(name)], dtype=np.uint32).view(np.float16)

    def packed(values: np.ndarray) -> int:
        return int(values.astype(np.float16).view(np.uint32)[0])

    for line in assembly.strip("{ }").split(";"):
        instruction, _, rest = line.strip().partition(" ")
        if not instruction or instruction == ".reg":
            continue
        target, *sources = (name.strip() for name in rest.split(","))
        if instruction == "mov.b32":
            registers[target] = read(sources[0])
        elif instruction == "prmt.b32":
            pool = read(sources[0]) | read(sources[1]) << 32
            picks = [read(sources[2]) >> (4 * i) & 7 for i in range(4)]
            registers[target] = sum((pool >> (8 * pick) & 0xFF) << (8 * i) for i, pick in enumerate(picks))
        elif instruction == "shr.u32":
            registers[target] = read(sources[0]) >> read(sources[1])
        elif instruction == "lop3.b32":
            table = read(sources[3])
            bits = [[read(name) >> i & 1 for name in sources[:3]] for i in range(32)]
            registers[target] = sum((table >> (a << 2 | b << 1 | c) & 1) << i for i, (a, b, c) in enumerate(bits))
        elif instruction == "add.rn.f16x2":
            registers[target] = packed(halves(sources[0]) + halves(sources[1]))
        elif instruction == "fma.rn.f16x2":
            a, b, c = (halves(name).astype(np.float64) for name in sources)
            registers[target] = packed(a * b + c)
        else:
            raise AssertionError(f"unknown instruction {instruction}")
    return registers


@pytest.mark.parametrize(("bits", "assembly"), [(2, UNPACK_2), (4, UNPACK_4), (8, UNPACK_8)])
@pytest.mark.parametrize("byte", range(4))
def test_codes_scales_and_minima_of_a_byte(bits: int, assembly: object, byte: int) -> None:
    generator = np.random.default_rng(byte)
    planes = 8 // bits
    for _ in range(20):
        words = generator.integers(0, 2**32, size=2)
        scale, minimum = generator.normal(size=(2, 2)).astype(np.float16)
        operands = {f"${planes + i}": int(word) for i, word in enumerate(words)}
        operands |= {f"${planes + i}": 0x4400 + 0x1111 * byte for i in (2, 3)}
        operands |= {f"${planes + 4}": int(scale.view(np.uint32)[0]), f"${planes + 5}": int(minimum.view(np.uint32)[0])}
        registers = run(str(assembly.value), operands)  # type: ignore[attr-defined]
        for plane in range(planes):
            codes = words >> (8 * byte + bits * plane) & (2**bits - 1)
            expected = (codes / 2**bits * scale.astype(np.float64) + minimum.astype(np.float64)).astype(np.float16)
            assert (np.array([registers[f"${plane}"]], dtype=np.uint32).view(np.float16) == expected).all()
