"""The pseudo-lidar: how near the nearest object of each kind is, in 16 directions."""

import numpy as np
from jaxtyping import Float, Int

BINS = 16
RANGE = 3.0


def pseudo_lidar(
    robot: Float[np.ndarray, "envs 3"],
    axes: Float[np.ndarray, "envs 2 3"],
    places: Float[np.ndarray, "envs objects 2"],
    group_starts: Int[np.ndarray, " groups"],
) -> Float[np.ndarray, "envs groups bins"]:
    """Readings in [0, 1], 1 at the robot's own place and 0 beyond the range.

    An object at the angle f bins (b = floor(f), alpha = f - b) reads s = 1 - distance / 3 in bin
    b, alpha s in b + 1 and (1 - alpha) s in b - 1; each bin shows its group's largest reading.
    ``axes`` are the robot's x and y axis in the world: a tilted robot sees the floor tilted.
    """
    envs, objects, _ = places.shape
    offset = np.empty((envs, objects, 3))
    np.subtract(places, robot[:, None, :2], out=offset[..., :2])
    offset[..., 2] = -robot[:, None, 2]
    seen = offset @ axes.transpose(0, 2, 1)
    x, y = seen[..., 0], seen[..., 1]
    nearness = np.maximum(0.0, RANGE - np.sqrt(x * x + y * y)) / RANGE
    angle = np.arctan2(y, x) % (2 * np.pi)
    position = angle / (2 * np.pi / BINS)
    below = np.floor(position)
    alpha = position - below
    # An angle just below zero can round to 2 pi, hence the remainder of bin 16 too.
    own = below.astype(np.intp) % BINS
    # Objects come first in memory, so that the largest of a group is found along whole rows.
    readings = np.zeros((objects, envs, BINS))
    flat = readings.reshape(-1)
    rows = BINS * np.arange(objects * envs).reshape(objects, envs).T
    flat[rows + own] = nearness
    flat[rows + (own + 1) % BINS] = alpha * nearness
    flat[rows + (own - 1) % BINS] = (1.0 - alpha) * nearness
    return np.maximum.reduceat(readings, group_starts, axis=0).transpose(1, 0, 2)
