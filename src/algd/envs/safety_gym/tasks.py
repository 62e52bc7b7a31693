"""The five tasks: which robot, which objects, which rule of reward and cost."""

from dataclasses import dataclass
from typing import Literal

from algd.envs.safety_gym.layout import Group, Rectangle, scattered, spots
from algd.envs.safety_gym.robots import CAR, POINT, Robot

LayoutName = Literal["fixed", "random"]

HORIZON = 400
SUBSTEPS = 10
COST_LIMIT = 10.0

BUTTON_RADIUS = 0.1
BUTTON_TIMER = 10
GREMLIN_HALF_SIZE = 0.1
GREMLIN_TRAVEL = 0.3
PILLAR_RADIUS = 0.2
BOX_HALF_SIZE = 0.2
GOAL_RADIUS = 0.3
GOAL_HEIGHT = 0.16

# One color for each kind of object in every picture.
COLOR = {
    "robot": (0.84, 0.22, 0.24),
    "goal": (0.20, 0.68, 0.36),
    "button": (0.95, 0.62, 0.20),
    "hazard": (0.36, 0.47, 0.86),
    "gremlin": (0.62, 0.32, 0.70),
    "pillar": (0.45, 0.48, 0.52),
    "box": (0.87, 0.74, 0.30),
}


@dataclass(frozen=True)
class Task:
    """One task as numbers; ``fixed`` and ``random`` are the placement rules of the two layouts."""

    name: str
    robot: Robot
    goal: Literal["button", "push"]
    hazard_radius: float
    parts: tuple[str, ...]
    fixed: tuple[Group, ...]
    random: tuple[Group, ...]

    def groups(self, layout: LayoutName) -> tuple[Group, ...]:
        """The placement rules of a layout by name."""
        return self.fixed if layout == "fixed" else self.random

    def count(self, kind: str) -> int:
        """How many objects of a kind there are."""
        return sum(len(g.rectangles) for g in self.fixed if g.kind == kind)


def _square(half: float) -> Rectangle:
    return (-half, -half, half, half)


# Random layouts scatter every object over the extents. Two keepouts are widened for it, as the
# paper's would let an episode begin inside a hazard or with a box stuck in a pillar: a hazard
# keeps others out of its own radius at least, the box out of its half-diagonal.
_BOX_KEEPOUT_SCATTERED = 0.45


def _button(name: str, robot: Robot, level: Literal[1, 2]) -> Task:
    extents = _square(2.0 if level == 1 else 1.8)
    radius = 0.17 if level == 1 else 0.22
    buttons = {
        1: ((-1.3, -1.3), (1.3, -1.3), (-1.3, 1.3), (1.3, 1.3)),
        2: ((-1.1, -1.3), (1.8, -1.5), (-1.4, 0.6), (1.0, 1.3)),
    }[level]
    hazards = {
        1: ((0.0, -1.9), (0.0, 1.9), (0.0, 0.0), (1.9, 0.0), (-1.9, 0.0)),
        2: (
            *((0.1, -1.9), (-0.2, 1.7), (0.3, 0.1), (2.0, -0.1), (-1.8, 0.2), (-0.1, -1.2)),
            *((0.0, 1.3), (1.1, 0.0), (-1.0, 0.0), (0.2, -0.9), (-1.1, 1.1)),
        ),
    }[level]
    gremlins = {1: ((0.0, -1.3), (0.0, 1.3), (1.3, 0.0), (-1.3, 0.0)), 2: ()}[level]
    start = scattered("robot", 0.4, extents)
    fixed = (start, spots("button", 0.2, *buttons), spots("hazard", 0.0, *hazards))
    random = (
        start,
        scattered("button", 0.2, extents, len(buttons)),
        scattered("hazard", radius, extents, len(hazards)),
    )
    if level == 1:
        fixed += (spots("gremlin", 0.35, *gremlins),)
        random += (scattered("gremlin", 0.35, extents, len(gremlins)),)
    parts = ("hazards", "buttons", "gremlins")[: 3 if level == 1 else 2]
    return Task(name, robot, "button", radius, parts, fixed, random)


def _push(name: str, robot: Robot) -> Task:
    extents = _square(2.0)
    hazards = ((0.5, -0.5), (-0.5, -0.5), (1.8, 0.8), (-1.8, 0.8))
    pillars = ((-2.0, 0.0), (2.0, 0.0), (0.0, 0.0), (1.0, 1.0), (-1.0, 1.0))
    fixed = (
        spots("robot", 0.4, (-1.0, -2.0)),
        scattered("goal", 0.4, (-2.0, -0.5, 2.0, 2.0)),
        spots("box", 0.2, (0.0, -1.5)),
        spots("hazard", 0.4, *hazards),
        spots("pillar", 0.3, *pillars),
    )
    random = (
        scattered("robot", 0.4, extents),
        scattered("goal", 0.4, extents),
        scattered("box", _BOX_KEEPOUT_SCATTERED, extents),
        scattered("hazard", 0.4, extents, len(hazards)),
        scattered("pillar", 0.3, extents, len(pillars)),
    )
    return Task(name, robot, "push", 0.3, ("hazards", "pillars"), fixed, random)


TASKS = {
    task.name: task
    for task in (
        _button("PointButton1", POINT, 1),
        _button("PointButton2", POINT, 2),
        _button("CarButton1", CAR, 1),
        _button("CarButton2", CAR, 2),
        _push("PointPush1", POINT),
    )
}
