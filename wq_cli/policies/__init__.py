"""Policies by name. A policy is one class in one file of this folder and one line here (CONTRIBUTING.md)."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from wq_cli.policies.options import name_of

if TYPE_CHECKING:
    from wq_cli.config import Quantization
    from wq_cli.policies.base import Policy

# name on the command line: module of this package, class in it
_REGISTRY = {
    "windowquant": ("windowquant", "WindowQuant"),
    "focus": ("focus", "Focus"),
    "fp16": ("uniform", "Full"),
    "rtn8": ("uniform", "Rtn8"),
    "rtn4": ("uniform", "Rtn4"),
    "rtn2": ("uniform", "Rtn2"),
    "random": ("windowquant", "Random"),
    "cocktail": ("cocktail", "Cocktail"),
    "kivi": ("kivi", "Kivi"),
    "akvq-vl": ("akvq_vl", "AkvqVl"),
    "mixkvq": ("mixkvq", "MixKvq"),
    "kvtuner": ("kvtuner", "KvTuner"),
    "kvmix": ("kvmix", "KvMix"),
    "skvq": ("skvq", "Skvq"),
    "smoothquant": ("smoothquant", "SmoothQuant"),
    "vidkv": ("vidkv", "VidKv"),
}


def names() -> list[str]:
    """Names that `--policy` accepts, the default first."""
    return list(_REGISTRY)


def beside_others(settings: Quantization, name: str) -> Quantization:
    """Settings of one policy of a comparison: a budget is for those that have something to choose."""
    chosen = replace(settings, policy=name)
    return chosen if create(chosen).needs_scores else replace(chosen, bits=None, kv_memory_bytes=None)


def check(spec: str) -> str:
    """A policy as it is written on the command line, `NAME` or `NAME:KEY=VALUE...`, if it can be made.

    Raises:
        UsageError: No such policy, or no such option of it.
    """
    from wq_cli.config import Quantization

    create(Quantization(policy=spec))
    return spec


def create(settings: Quantization) -> Policy:
    """The policy that `settings.policy` names, with the options that follow the name (`policies.options`).

    Raises:
        UsageError: No such policy, or no such option of it.
    """
    from wq_cli.errors import unknown_name

    name = name_of(settings.policy)
    if name not in _REGISTRY:
        raise unknown_name("policy", name, names())
    module, cls = _REGISTRY[name]
    policy: Policy = getattr(import_module(f"wq_cli.policies.{module}"), cls)(settings)
    return policy
