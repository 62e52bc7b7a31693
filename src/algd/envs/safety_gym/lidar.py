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


def pseudo_lidar(
    robot: Float[np.ndarray, "envs 3"],
    axes: Float[np.ndarray, "envs 2 3"],
    places: Float[np.ndarray, "envs objects 2"],
    cells: Cells,
) -> Float[np.ndarray, "groups envs bins"]:
    """Readings in [0, 1], 1 at the robot's own place and 0 beyond the range.

    An object at the angle f bins (b = floor(f), alpha = f - b) reads s = 1 - distance / 3 in bin
    b, alpha s in b + 1 and (1 - alpha) s in b - 1; each bin shows its group's largest reading.
    ``axes`` are the robot's x and y axis in the world: a tilted robot sees the floor tilted.
    """
    x0, y0 = places[..., 0] - robot[:, :1], places[..., 1] - robot[:, 1:2]
    # Written out: a matrix product may order its sums by the number of rows.
    along_x, along_y, along_z = axes.transpose(2, 0, 1)[..., None]
    seen = along_x * x0[:, None] + along_y * y0[:, None] - along_z * robot[:, 2, None, None]
    x, y = seen[:, 0], seen[:, 1]
    nearness = np.maximum(0.0, RANGE - np.sqrt(x * x + y * y)) / RANGE
    position = np.arctan2(y, x) % (2 * np.pi) / (2 * np.pi / BINS)
    below = np.floor(position)
    alpha = position - below
    # An angle just below zero can round to 2 pi, hence the remainder of bin 16 too.
    own = below.astype(np.intp) % BINS
    readings = np.zeros(cells.shape)
    flat = readings.reshape(-1)
    flat[cells.first + own] = nearness
    flat[cells.first + (own + 1) % BINS] = alpha * nearness
    flat[cells.first + (own - 1) % BINS] = (1.0 - alpha) * nearness
    return np.maximum.reduce(readings, axis=0)
