"""The PTX that masks codes out of words, run line by line: Triton's interpreter cannot, and a GPU is not everywhere."""

import numpy as np
import pytest

pytest.importorskip("triton")

from wq_kernels.ops.attend.planes import MASK_2, MASK_4, MASK_8, position


def run(assembly: str, word: int, planes: int) -> list[int]:
    """Registers $0 to $planes - 1 after the program; operand $planes is the word."""
    registers = {f"${planes}": word}
    for line in filter(None, assembly.strip("{ };").split("; ")):
        instruction, _, rest = line.strip().partition(" ")
        if instruction == ".reg":
            continue
        target, source, operand = (name.strip() for name in rest.split(","))
        value = int(operand, 0)
        registers[target] = {"shr.u32": registers[source] >> value, "and.b32": registers[source] & value}[instruction]
    return [registers[f"${plane}"] for plane in range(planes)]


@pytest.mark.parametrize(("bits", "assembly"), [(2, MASK_2), (4, MASK_4), (8, MASK_8)])
def test_a_masked_half_is_its_code(bits: int, assembly: object) -> None:
    """Both halves of every register, read as float16, are code * 2**(position - 24), subnormal and exact."""
    generator = np.random.default_rng(bits)
    planes = 16 // bits
    for pair in generator.integers(0, 2**16, size=(200, 2)):
        word = int(pair[0]) | int(pair[1]) << 16
        for plane, register in enumerate(run(str(assembly.value), word, planes)):  # type: ignore[attr-defined]
            halves = np.array([register], dtype=np.uint32).view(np.float16)
            codes = pair >> bits * plane & (2**bits - 1)
            assert (halves == codes * 2.0 ** (position(plane, bits) - 24)).all()
            assert position(plane, bits) + bits <= 10
