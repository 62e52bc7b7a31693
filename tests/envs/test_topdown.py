import numpy as np
import pytest

from algd.envs.topdown import Canvas

RED = (1.0, 0.0, 0.0)


def painted(canvas: Canvas) -> float:
    """The red area in world units, partly covered pixels counting in part."""
    return float(np.sum(1.0 - canvas.colors[..., 1])) * canvas.pixel**2


@pytest.mark.parametrize("center", [(0.0, 0.0), (0.3, -0.41), (0.123, 0.456)])
def test_areas_are_those_of_geometry(center):
    canvas = Canvas(1.0, pixels=200)
    canvas.disk(center, 0.3, RED)
    assert painted(canvas) == pytest.approx(np.pi * 0.09, rel=2e-3)
    for angle in (0.0, 0.4, 2.0):
        canvas = Canvas(1.0, pixels=200)
        canvas.box(center, (0.3, 0.15), RED, angle=angle)
        assert painted(canvas) == pytest.approx(4 * 0.3 * 0.15, rel=5e-3)
    canvas = Canvas(1.0, pixels=200)
    canvas.ring(center, 0.3, 0.05, RED)
    assert painted(canvas) == pytest.approx(2 * np.pi * 0.3 * 0.05, rel=1e-2)
    canvas = Canvas(1.0, pixels=200)
    canvas.line(center, (center[0] + 0.2, center[1] + 0.1), 0.06, RED)
    length = np.hypot(0.2, 0.1)
    assert painted(canvas) == pytest.approx(0.06 * length + np.pi * 0.03**2, rel=2e-2)


def test_y_points_up_and_x_to_the_right():
    canvas = Canvas(1.0, pixels=100)
    canvas.disk((0.5, 0.5), 0.1, RED)
    image = canvas.image()
    assert image.shape == (100, 100, 3)
    assert image.dtype == np.uint8
    assert tuple(image[25, 75]) == (255, 0, 0)
    assert tuple(image[75, 75]) == (255, 255, 255)


def test_an_arrow_points_where_it_should():
    canvas = Canvas(1.0, pixels=200)
    canvas.arrow((-0.5, 0.0), (0.5, 0.0), 0.04, RED)
    covered = 1.0 - canvas.colors[..., 1]
    assert covered[:, 120:].sum() > 1.2 * covered[:, :80].sum()


def test_alpha_mixes_and_edges_are_smooth():
    canvas = Canvas(1.0, pixels=100)
    canvas.disk((0.0, 0.0), 0.5, RED, alpha=0.25)
    assert canvas.colors[50, 50] == pytest.approx((1.0, 0.75, 0.75))
    levels = np.unique(np.round(canvas.colors[..., 1], 3))
    assert len(levels) > 10


def test_shapes_outside_leave_the_picture_alone():
    canvas = Canvas(1.0, pixels=50)
    canvas.disk((9.0, 9.0), 0.5, RED)
    canvas.box((-9.0, 0.0), (0.5, 0.5), RED, angle=0.3)
    canvas.arrow((5.0, 5.0), (6.0, 5.0), 0.1, RED)
    assert (canvas.colors == 1.0).all()
    canvas.disk((1.0, 0.0), 0.5, RED)
    assert painted(canvas) == pytest.approx(np.pi * 0.25 / 2, rel=2e-2)
