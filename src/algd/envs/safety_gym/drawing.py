"""Pictures of the tasks: quickly from above, or by MuJoCo where there is OpenGL."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

from typing import Any

import mujoco
import numpy as np
from jaxtyping import UInt8

from algd.envs.safety_gym.robots import CAR
from algd.envs.safety_gym.tasks import (
    BOX_HALF_SIZE,
    BUTTON_RADIUS,
    COLOR,
    GOAL_HEIGHT,
    GOAL_RADIUS,
    GREMLIN_HALF_SIZE,
    PILLAR_RADIUS,
)
from algd.envs.safety_gym.world import World
from algd.envs.topdown import Canvas, Color

RENDERERS = ("topdown", "mujoco")
HALF_WIDTH = 2.5
PIXELS = 400

FLOOR: Color = (0.965, 0.96, 0.945)
GRID: Color = (0.90, 0.895, 0.875)
DARK: Color = (0.20, 0.20, 0.24)


class Painter:
    """Makes the pictures; MuJoCo's renderer is opened when first needed."""

    def __init__(self, renderer: str):
        if renderer not in RENDERERS:
            raise ValueError(f"unknown renderer {renderer!r}: there are 'topdown' and 'mujoco'")
        self.renderer = renderer
        self._mujoco: Any = None

    def picture(self, world: World, copy: int) -> UInt8[np.ndarray, "pixels pixels 3"]:
        """One copy of the world as it is now."""
        if self.renderer == "topdown":
            return topdown_picture(world, copy)
        if self._mujoco is None:
            try:
                self._mujoco = mujoco.Renderer(world.physics.models[copy], PIXELS, PIXELS)
            except Exception as error:
                raise RuntimeError(
                    "MuJoCo's renderer needs OpenGL, which could not be started here "
                    f"({error}). Set MUJOCO_GL=egl or osmesa where there is no display, or use "
                    "renderer='topdown', which needs none."
                ) from error
        return mujoco_picture(self._mujoco, world, copy)

    def close(self) -> None:
        """Free OpenGL."""
        if self._mujoco is not None:
            self._mujoco.close()
            self._mujoco = None


def topdown_picture(world: World, copy: int) -> UInt8[np.ndarray, "pixels pixels 3"]:
    """The scene from above; a red border shows that the last step had a cost."""
    robot = world.robot[copy]
    # The arena has no walls: the camera follows a robot that leaves it.
    beyond = robot[:2] - np.clip(robot[:2], -HALF_WIDTH + 0.3, HALF_WIDTH - 0.3)
    center = (float(beyond[0]), float(beyond[1]))
    canvas = Canvas(HALF_WIDTH, PIXELS, center, FLOOR)
    for step in np.arange(-3.0, 4.0):
        x, y = round(center[0]) + float(step), round(center[1]) + float(step)
        canvas.line((x, center[1] - 3.0), (x, center[1] + 3.0), 0.012, GRID)
        canvas.line((center[0] - 3.0, y), (center[0] + 3.0, y), 0.012, GRID)

    def places(kind: str) -> list[tuple[float, float]]:
        rows = world.rows.get(kind, slice(0, 0))
        return [(float(x), float(y)) for x, y in world.places[copy, rows]]

    for xy in places("hazard"):
        canvas.disk(xy, world.task.hazard_radius, COLOR["hazard"], alpha=0.45)
        canvas.ring(xy, world.task.hazard_radius, 0.02, COLOR["hazard"])
    if world.task.goal == "push":
        for xy in places("goal"):
            canvas.disk(xy, GOAL_RADIUS, COLOR["goal"], alpha=0.4)
            canvas.ring(xy, GOAL_RADIUS, 0.03, COLOR["goal"])
    for xy in places("pillar"):
        canvas.disk(xy, PILLAR_RADIUS, COLOR["pillar"])
    resting = world.timer[copy] > 0
    for i, xy in enumerate(places("button")):
        is_goal = i == world.goal_button[copy]
        color = COLOR["goal" if is_goal else "button"]
        canvas.disk(xy, BUTTON_RADIUS, color, 0.45 if resting else 1.0)
        if is_goal:
            canvas.ring(xy, BUTTON_RADIUS + 0.08, 0.035, COLOR["goal"])
    for i, xy in enumerate(places("gremlin")):
        half_size = (GREMLIN_HALF_SIZE, GREMLIN_HALF_SIZE)
        canvas.box(xy, half_size, COLOR["gremlin"], _yaw(world, copy, f"gremlin{i}"))
    for xy in places("box"):
        _draw_box(canvas, xy, _yaw(world, copy, "box0"))
    _draw_robot(canvas, world, copy)
    if world.last_costs[copy].any():
        canvas.frame(0.07, COLOR["robot"])
    return canvas.image()


def _yaw(world: World, copy: int, body: str) -> float:
    matrix = world.physics.data(copy).body(body).xmat
    return float(np.arctan2(matrix[3], matrix[0]))


def _draw_box(canvas: Canvas, xy: tuple[float, float], yaw: float) -> None:
    c, s = float(np.cos(yaw)), float(np.sin(yaw))
    shade: Color = (0.70, 0.58, 0.20)
    for x in (-BOX_HALF_SIZE, BOX_HALF_SIZE):
        for y in (-BOX_HALF_SIZE, BOX_HALF_SIZE):
            corner = (xy[0] + c * x - s * y, xy[1] + s * x + c * y)
            canvas.box(corner, (0.1, 0.1), shade, yaw)
    canvas.box(xy, (BOX_HALF_SIZE, BOX_HALF_SIZE), COLOR["box"], yaw)


def _draw_robot(canvas: Canvas, world: World, copy: int) -> None:
    x, y = (float(v) for v in world.robot[copy, :2])
    yaw = _yaw(world, copy, "robot")
    c, s = float(np.cos(yaw)), float(np.sin(yaw))

    def at(along: float, across: float) -> tuple[float, float]:
        return (x + c * along - s * across, y + s * along + c * across)

    if world.task.robot is CAR:
        for wheel in (-0.13, 0.13):
            canvas.box(at(wheel, 0.1), (0.025, 0.05), DARK, yaw)
        canvas.box((x, y), (0.1, 0.1), COLOR["robot"], yaw)
        canvas.box(at(0.0, 0.15), (0.1, 0.01), COLOR["robot"], yaw)
        canvas.box(at(0.0, 0.125), (0.01, 0.025), COLOR["robot"], yaw)
        canvas.box(at(0.0, -0.165), (0.05, 0.01), COLOR["robot"], yaw)
        canvas.box(at(0.0, -0.13), (0.05, 0.03), COLOR["robot"], yaw)
        reach = 0.45
    else:
        canvas.disk((x, y), 0.1, COLOR["robot"])
        canvas.box(at(0.1, 0.0), (0.05, 0.05), COLOR["robot"], yaw)
        reach = 0.4
    ahead = world.task.robot.forward
    canvas.arrow((x, y), at(reach * ahead[0], reach * ahead[1]), 0.03, DARK)


def mujoco_picture(renderer: Any, world: World, copy: int) -> UInt8[np.ndarray, "pixels pixels 3"]:
    """The scene in MuJoCo's own light, with what the physics does without put in."""
    camera = mujoco.MjvCamera()
    camera.lookat[:] = (0.0, 0.0, 0.0)
    camera.distance, camera.azimuth, camera.elevation = 6.5, 90.0, -60.0
    renderer.update_scene(world.physics.data(copy), camera)
    cylinder = mujoco.mjtGeom.mjGEOM_CYLINDER
    hazard = (world.task.hazard_radius, 0.01, 0.0)
    for xy in world.places[copy, world.rows["hazard"]]:
        _add_geom(renderer.scene, cylinder, hazard, (*xy, 0.02), (*COLOR["hazard"], 0.5))
    goal = world.places[copy, world.rows["goal"].start]
    if world.task.goal == "push":
        size = (GOAL_RADIUS, 0.15, 0.0)
        _add_geom(renderer.scene, cylinder, size, (*goal, GOAL_HEIGHT), (*COLOR["goal"], 0.4))
    else:
        _add_geom(renderer.scene, cylinder, (0.2, 0.02, 0.0), (*goal, 0.02), (*COLOR["goal"], 0.8))
    return renderer.render()


def _add_geom(
    scene: Any, kind: Any, size: tuple[float, ...], pos: tuple[float, ...], rgba: tuple[float, ...]
) -> None:
    mujoco.mjv_initGeom(
        scene.geoms[scene.ngeom],
        kind.value,
        np.array(size),
        np.array(pos),
        np.eye(3).ravel(),
        np.array(rgba, np.float32),
    )
    scene.ngeom += 1
