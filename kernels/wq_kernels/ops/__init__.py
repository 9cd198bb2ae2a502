"""The operations: one folder each, with its PyTorch form (naive.py) and its Triton form (kernel.py)."""
