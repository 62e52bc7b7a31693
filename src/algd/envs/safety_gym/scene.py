"""The MuJoCo model of a task: made once, and re-arranged in place for another layout."""

# MuJoCo takes its names from compiled modules that pyright cannot see into.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterable

import mujoco
import numpy as np
from jaxtyping import Float

from algd.envs.safety_gym.layout import Layout, members
from algd.envs.safety_gym.tasks import (
    BOX_HALF_SIZE,
    BUTTON_RADIUS,
    COLOR,
    GREMLIN_HALF_SIZE,
    PILLAR_RADIUS,
    Task,
)

# The heights of the bodies' centres.
HEIGHT = {"robot": 0.1, "button": 0.1, "gremlin": 0.1, "box": BOX_HALF_SIZE, "pillar": 0.5}
# Moving objects first, then fixed ones: the order decides that of the contacts, and with it
# the last bits of the solver's answer.
FREE_KINDS = ("gremlin", "box")
FIXED_KINDS = ("button", "pillar")


def _numbers(values: Iterable[float]) -> str:
    return " ".join(repr(float(v)) for v in values)


def heading(yaw: float) -> Float[np.ndarray, " 4"]:
    """The quaternion of a turn about the vertical."""
    return np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def _shape(kind: str) -> str:
    if kind == "button":
        return f'<geom type="sphere" size="{BUTTON_RADIUS}"/>'
    if kind == "pillar":
        return f'<geom type="cylinder" size="{PILLAR_RADIUS} 0.5"/>'
    if kind == "gremlin":
        h = GREMLIN_HALF_SIZE
        return f'<freejoint/><geom type="box" size="{h} {h} {h}" density="0.001"/>'
    if kind == "box":
        h = BOX_HALF_SIZE
        columns = "".join(
            f'<geom type="box" size="0.1 0.1 {h}" pos="{x} {y} 0" density="0.001"/>'
            for y in (h, -h)
            for x in (h, -h)
        )
        return f'<freejoint/><geom type="box" size="{h} {h} {h}" density="0.001"/>{columns}'
    raise ValueError(kind)


def body_names(task: Task, kind: str) -> list[str]:
    """The names of the bodies of one kind in the model."""
    return ["robot"] if kind == "robot" else [f"{kind}{i}" for i in range(task.count(kind))]


def scene_xml(task: Task, layout: Layout) -> str:
    """The scene as MJCF. Hazards and goals touch nothing, so the physics does without them."""

    def bodies(kind: str) -> str:
        rows = members(task.fixed, kind)
        return "".join(
            f'<body name="{name}" childclass="{kind}" pos="{_numbers((*xy, HEIGHT[kind]))}" '
            f'quat="{_numbers(heading(yaw))}">'
            f"{task.robot.body if kind == 'robot' else _shape(kind)}</body>\n"
            for name, xy, yaw in zip(
                body_names(task, kind), layout.xy[rows], layout.yaw[rows], strict=True
            )
        )

    gremlins = body_names(task, "gremlin")
    mocaps = "".join(f'<body name="{g}_guide" mocap="true"/>\n' for g in gremlins)
    welds = "".join(f'<weld body1="{g}_guide" body2="{g}" solref="0.02 1.5"/>\n' for g in gremlins)
    # What the task looks at beyond the observed sensors, so that all of it comes in one array.
    watched = '<clock name="clock"/>\n' + "".join(
        f'<{sensor} name="{sensor}_robot" objtype="xbody" objname="robot"/>\n'
        for sensor in ("framepos", "framexaxis", "frameyaxis")
    )
    for kind in FREE_KINDS:
        for name in body_names(task, kind):
            watched += f'<framepos name="framepos_{name}" objtype="xbody" objname="{name}"/>\n'
    for kind in ("button", "gremlin", "pillar"):
        for name in body_names(task, kind):
            watched += (
                f'<contact name="touch_{name}" subtree1="robot" body2="{name}" data="found"/>\n'
            )
    colors = "".join(
        f'<default class="{kind}"><geom rgba="{_numbers(color)} 1"/></default>\n'
        for kind, color in COLOR.items()
    )
    return f"""
<mujoco model="{task.name}">
  <option timestep="{task.robot.timestep}"/>
  <default><geom condim="6" density="{task.robot.density}"/>{colors}</default>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0.5 0.5 0.5"/></visual>
  <worldbody>
    <geom name="floor" type="plane" size="4 4 0.1" rgba="0.95 0.95 0.93 1"/>
    {bodies("robot")}
    {"".join(bodies(kind) for kind in FREE_KINDS)}
    {mocaps}
    {"".join(bodies(kind) for kind in FIXED_KINDS)}
  </worldbody>
  <equality>{welds}</equality>
  <actuator>{task.robot.actuators}</actuator>
  <sensor>{task.robot.sensors}{watched}</sensor>
</mujoco>
"""


def compile_scene(task: Task, layout: Layout) -> mujoco.MjModel:
    """The task's model with its objects in the given places."""
    return mujoco.MjModel.from_xml_string(scene_xml(task, layout))


def place(task: Task, model: mujoco.MjModel, layout: Layout) -> None:
    """Move the objects of a compiled model to another layout, as if compiled for it."""
    for kind in ("robot", *FREE_KINDS, *FIXED_KINDS):
        rows = members(task.fixed, kind)
        for name, xy, yaw in zip(
            body_names(task, kind), layout.xy[rows], layout.yaw[rows], strict=True
        ):
            body = model.body(name)
            body.pos[:2] = xy
            body.quat[:] = heading(yaw)
            joint = body.jntadr[0]
            if joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                start = model.jnt_qposadr[joint]
                model.qpos0[start : start + 7] = (*body.pos, *body.quat)
    for equality in range(model.neq):
        # A weld remembers the pose of its second body as its first, a guide at the origin, saw it.
        gremlin = model.eq_obj2id[equality]
        model.eq_data[equality, 3:6] = model.body_pos[gremlin]
        model.eq_data[equality, 6:10] = model.body_quat[gremlin]
