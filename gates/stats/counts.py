"""What one look, or one block of looks, gives to an e-process of two arms."""

from typing import NamedTuple


class Counts(NamedTuple):
    """``k_*``: events (exceedances, errors, eager steps); ``n_*``: observations; c = canary."""

    k_c: float
    k_b: float
    n_c: float
    n_b: float
