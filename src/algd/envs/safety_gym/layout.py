"""Where things stand when an episode begins, and where the next goal goes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Rectangle = tuple[float, float, float, float]

TRIES_PER_OBJECT = 100
TRIES_PER_LAYOUT = 10_000
# The engine of the paper keeps a fixed place as a very small rectangle to draw from.
JITTER = 1e-9

PLACING_ORDER = ("robot", "goal", "box", "button", "hazard", "pillar", "gremlin")
TURNING_ORDER = ("robot", "gremlin", "box", "goal", "hazard", "pillar", "button")


@dataclass(frozen=True)
class Group:
    """All objects of one kind: how far others keep away, and a rectangle for each to lie in."""

    kind: str
    keepout: float
    rectangles: tuple[Rectangle, ...]


class Layout(NamedTuple):
    """The places and headings of all objects, group after group."""

    xy: Float[np.ndarray, "objects 2"]
    yaw: Float[np.ndarray, " objects"]


def spots(kind: str, keepout: float, *places: tuple[float, float]) -> Group:
    """Objects at fixed places."""
    k = keepout + JITTER
    return Group(kind, keepout, tuple((x - k, y - k, x + k, y + k) for x, y in places))


def scattered(kind: str, keepout: float, rectangle: Rectangle, count: int = 1) -> Group:
    """Objects that may lie anywhere in a rectangle."""
    return Group(kind, keepout, (rectangle,) * count)


def draw_free_point(
    rng: np.random.RandomState,
    rectangle: Rectangle,
    keepout: float,
    clearance: Float[np.ndarray, " others"],
    others: Float[np.ndarray, "others 2"],
    tries: int,
) -> tuple[float, float] | None:
    """A uniform point of the rectangle, ``keepout`` away from its edges and with the wanted
    clearance from every other; None when none of the tries has it."""
    x0, y0, x1, y1 = rectangle
    for _ in range(tries):
        point = (rng.uniform(x0 + keepout, x1 - keepout), rng.uniform(y0 + keepout, y1 - keepout))
        distance = np.sqrt(np.sum(np.square(others - point), axis=1))
        if np.all(distance >= clearance):
            return point
    return None


def draw_places(
    groups: tuple[Group, ...], rng: np.random.RandomState
) -> Float[np.ndarray, "objects 2"] | None:
    """One try at placing all objects one after another; None when one finds no room."""
    keepouts = np.array([g.keepout for g in groups for _ in g.rectangles])
    rectangles = [r for g in groups for r in g.rectangles]
    placed = np.empty((len(rectangles), 2))
    for i, rectangle in enumerate(rectangles):
        keepout, clearance = float(keepouts[i]), keepouts[:i] + keepouts[i]
        point = draw_free_point(rng, rectangle, keepout, clearance, placed[:i], TRIES_PER_OBJECT)
        if point is None:
            return None
        placed[i] = point
    return placed


def members(groups: tuple[Group, ...], kind: str) -> slice:
    """The rows of a layout that hold the objects of one kind."""
    start = 0
    for group in groups:
        if group.kind == kind:
            return slice(start, start + len(group.rectangles))
        start += len(group.rectangles)
    return slice(0, 0)


def draw_layout(groups: tuple[Group, ...], rng: np.random.RandomState) -> Layout:
    """Draw places in the placing order, then headings in the turning order."""
    assert [g.kind for g in groups] == [
        k for k in PLACING_ORDER if any(g.kind == k for g in groups)
    ]
    for _ in range(TRIES_PER_LAYOUT):
        xy = draw_places(groups, rng)
        if xy is not None:
            break
    else:
        raise RuntimeError(f"no layout found in {TRIES_PER_LAYOUT} tries: keepouts too large")
    yaw = np.empty(len(xy))
    for kind in TURNING_ORDER:
        rows = members(groups, kind)
        for i in range(rows.start, rows.stop):
            yaw[i] = rng.uniform(0, 2 * np.pi)
    return Layout(xy, yaw)


def redraw(
    group: Group,
    clearance: Float[np.ndarray, " others"],
    others: Float[np.ndarray, "others 2"],
    rng: np.random.RandomState,
) -> Float[np.ndarray, " 2"] | None:
    """A new place for the only member of a group among the others where they are now."""
    point = draw_free_point(
        rng, group.rectangles[0], group.keepout, clearance, others, TRIES_PER_LAYOUT
    )
    return None if point is None else np.array(point)
