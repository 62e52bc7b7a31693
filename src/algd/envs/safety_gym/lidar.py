"""The pseudo-lidar: how near the nearest object of each kind is, in 16 directions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

BINS = 16
RANGE = 3.0


class Cells(NamedTuple):
    """Where the readings of each object are collected: [member, group, env, bin], flattened.

    Groups are padded to the size of the largest, so that one reduction over members gives the
    largest reading of every group; the readings of absent members stay 0 and are never largest.
    """

    shape: tuple[int, int, int, int]
    first: Int[np.ndarray, "envs objects"]


def lidar_cells(group_sizes: list[int], envs: int) -> Cells:
    """The cells for objects that are listed group after group."""
    shape = (max(group_sizes), len(group_sizes), envs, BINS)
    member = np.concatenate([np.arange(size) for size in group_sizes])
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    env = np.arange(envs)[:, None]
    return Cells(shape, np.ravel_multi_index((member, group, env, np.zeros_like(env)), shape))


# The bin of an angle and its neighbours. An angle just below zero can round to 2 pi: hence bin 16.
_NEIGHBOURS = (np.arange(BINS + 1)[:, None] + np.array([0, 1, -1])) % BINS


def pseudo_lidar(
    axes: Float[np.ndarray, "envs 2 3"],
    height: Float[np.ndarray, " envs"],
    x: Float[np.ndarray, "envs objects"],
    y: Float[np.ndarray, "envs objects"],
    cells: Cells,
) -> Float[np.ndarray, "groups envs bins"]:
    """Readings in [0, 1], 1 at the robot's own place and 0 beyond the range.

    An object at the angle f bins (b = floor(f), alpha = f - b) reads s = 1 - distance / 3 in bin
    b, alpha s in b + 1 and (1 - alpha) s in b - 1; each bin shows its group's largest reading.
    ``axes`` are the robot's x and y axis in the world: a tilted robot sees the floor, ``height``
    below it, tilted. ``x`` and ``y`` lead from the robot to the objects, in the world.
    """
    # Written out: a matrix product may order its sums by the number of rows.
    along_x, along_y, along_z = axes.transpose(2, 0, 1)[..., None]
    seen = along_x * x[:, None] + along_y * y[:, None] - along_z * height[:, None, None]
    x, y = seen[:, 0], seen[:, 1]
    nearness = np.maximum(0.0, RANGE - np.sqrt(x * x + y * y)) / RANGE
    position = np.arctan2(y, x) % (2 * np.pi) / (2 * np.pi / BINS)
    below = np.floor(position)
    alpha = position - below
    own = np.empty((*alpha.shape, 3))
    own[..., 0] = nearness
    np.multiply(alpha, nearness, out=own[..., 1])
    np.multiply(1.0 - alpha, nearness, out=own[..., 2])
    readings = np.zeros(cells.shape)
    readings.reshape(-1)[cells.first[..., None] + _NEIGHBOURS[below.astype(np.intp)]] = own
    return np.maximum.reduce(readings, axis=0)
