"""Several seeds of one run in one program: the same path with a leading axis.

On an accelerator, which one run's small networks leave idle, the others come nearly for nothing.
One seed alone has no such axis, and its programs are not mapped.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def over_seeds(function: Callable[..., Any], seeds: int) -> Callable[..., Any]:
    """The function of every seed's part of its arguments."""
    return function if seeds == 1 else jax.vmap(function)


def stack(trees: Sequence[T]) -> T:
    """One tree for each seed as a single one."""
    if len(trees) == 1:
        return trees[0]

    def together(*leaves: Any) -> Any:
        return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else jnp.stack(leaves)

    return jax.tree.map(together, *trees)


def split(tree: T, seeds: int) -> list[T]:
    """The part of each seed."""
    if seeds == 1:
        return [tree]
    return [jax.tree.map(lambda x, i=i: x[i, ...], tree) for i in range(seeds)]
