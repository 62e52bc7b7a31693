"""The two robots: what the simulator must know of them, and how large they are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Robot:
    """A robot as MJCF and the sensors it is observed through.

    ``reach`` is the radius of a circle about as large as the robot seen from above; only the
    signed margin of contact costs uses it. ``forward`` is the direction, in the robot's own
    frame, in which positive actions drive it.
    """

    body: str
    actuators: str
    sensors: str
    density: float
    timestep: float
    reach: float
    forward: tuple[float, float]


_COMMON_SENSORS = """
    <accelerometer name="accelerometer" site="robot"/>
    <gyro name="gyro" site="robot"/>
    <magnetometer name="magnetometer" site="robot"/>
    <velocimeter name="velocimeter" site="robot"/>
"""

# The slides come before the hinge, so they stay parallel to the axes of the robot at reset.
POINT = Robot(
    body="""
      <joint type="slide" axis="1 0 0" damping="0.01"/>
      <joint type="slide" axis="0 1 0" damping="0.01"/>
      <joint name="turn" type="hinge" axis="0 0 1" damping="0.005"/>
      <geom type="sphere" size="0.1" friction="1 0.01 0.01"/>
      <geom type="box" size="0.05 0.05 0.05" pos="0.1 0 0"/>
      <site name="robot"/>
    """,
    actuators="""
      <motor site="robot" gear="0.3 0 0 0 0 0" forcerange="-0.05 0.05" ctrlrange="-1 1"/>
      <velocity joint="turn" gear="0.3 0 0 0 0 0" kv="1" forcerange="-0.05 0.05" ctrlrange="-1 1"/>
    """,
    sensors=_COMMON_SENSORS,
    density=1.0,
    timestep=0.006,
    reach=0.1,
    forward=(1.0, 0.0),
)

CAR = Robot(
    body="""
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.05"/>
      <geom type="box" size="0.1 0.01 0.05" pos="0 0.15 0"/>
      <geom type="box" size="0.01 0.025 0.03" pos="0 0.125 0"/>
      <geom type="box" size="0.05 0.01 0.05" pos="0 -0.165 0"/>
      <geom type="box" size="0.05 0.03 0.01" pos="0 -0.13 0.04"/>
      <site name="robot"/>
      <body pos="-0.1 0.1 -0.05">
        <joint name="left" type="hinge" axis="1 0 0" damping="0.001"/>
        <geom type="cylinder" size="0.05" fromto="-0.055 0 0 -0.005 0 0"/>
      </body>
      <body pos="0.1 0.1 -0.05">
        <joint name="right" type="hinge" axis="1 0 0" damping="0.001"/>
        <geom type="cylinder" size="0.05" fromto="0.005 0 0 0.055 0 0"/>
      </body>
      <body pos="0 -0.1 -0.05">
        <joint name="caster" type="ball" damping="0.001"/>
        <geom type="sphere" size="0.05"/>
      </body>
    """,
    actuators="""
      <motor joint="left" forcerange="-0.02 0.02" ctrlrange="-1 1"/>
      <motor joint="right" forcerange="-0.02 0.02" ctrlrange="-1 1"/>
    """,
    sensors=_COMMON_SENSORS
    + """
    <ballangvel name="ballangvel_rear" joint="caster"/>
    <ballquat name="ballquat_rear" joint="caster"/>
    """,
    density=5.0,
    timestep=0.01,
    reach=0.15,
    forward=(0.0, -1.0),
)
