"""Pictures of a plane seen from above, in NumPy alone: no display, no OpenGL.

Each shape is a signed distance field, and its coverage of a pixel is read off the distance to its
edge; so edges are smooth without drawing anything larger first.
"""

import numpy as np
from jaxtyping import Float, UInt8

Color = tuple[float, float, float]
Point = tuple[float, float]


class Canvas:
    """A square picture of the part of the plane around ``center``; colors are in [0, 1].

    World coordinates have y pointing up. Shapes are painted over what is there, disks with the
    opacity ``alpha``, and may lie partly or wholly outside.
    """

    def __init__(
        self,
        half_width: float,
        pixels: int = 400,
        center: Point = (0.0, 0.0),
        background: Color = (1.0, 1.0, 1.0),
    ):
        self.pixel = 2.0 * half_width / pixels
        self.left = center[0] - half_width
        self.top = center[1] + half_width
        self.colors = np.empty((pixels, pixels, 3))
        self.colors[:] = background

    def disk(self, center: Point, radius: float, color: Color, alpha: float = 1.0) -> None:
        """Fill a circle."""
        rows, columns, x, y = self._around(center, (radius, radius))
        distance = np.hypot(x - center[0], y - center[1]) - radius
        self._paint(rows, columns, distance, color, alpha)

    def ring(self, center: Point, radius: float, width: float, color: Color) -> None:
        """Draw a circle with a line of the given width along its edge."""
        rows, columns, x, y = self._around(center, (radius + width, radius + width))
        distance = np.abs(np.hypot(x - center[0], y - center[1]) - radius) - width / 2
        self._paint(rows, columns, distance, color)

    def box(
        self, center: Point, half_size: tuple[float, float], color: Color, angle: float = 0.0
    ) -> None:
        """Fill a rectangle that is turned by ``angle`` about its centre."""
        diagonal = float(np.hypot(*half_size))
        rows, columns, x, y = self._around(center, (diagonal, diagonal))
        x, y = x - center[0], y - center[1]
        along = np.abs(np.cos(angle) * x + np.sin(angle) * y) - half_size[0]
        across = np.abs(np.cos(angle) * y - np.sin(angle) * x) - half_size[1]
        outside = np.hypot(np.maximum(along, 0.0), np.maximum(across, 0.0))
        distance = outside + np.minimum(np.maximum(along, across), 0.0)
        self._paint(rows, columns, distance, color)

    def line(self, start: Point, stop: Point, width: float, color: Color) -> None:
        """Draw a straight line with round ends."""
        center = ((start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2)
        along = (stop[0] - start[0], stop[1] - start[1])
        length = float(np.hypot(*along))
        reach = (abs(along[0]) / 2 + width, abs(along[1]) / 2 + width)
        rows, columns, x, y = self._around(center, reach)
        x, y = x - start[0], y - start[1]
        share = np.clip((x * along[0] + y * along[1]) / max(length**2, 1e-300), 0.0, 1.0)
        distance = np.hypot(x - share * along[0], y - share * along[1]) - width / 2
        self._paint(rows, columns, distance, color)

    def arrow(self, start: Point, stop: Point, width: float, color: Color) -> None:
        """Draw a line with an arrow head at its stop, three times as wide as the line."""
        angle = np.arctan2(stop[1] - start[1], stop[0] - start[0])
        self.line(start, stop, width, color)
        for side in (0.8 * np.pi, -0.8 * np.pi):
            end = (
                float(stop[0] + 3 * width * np.cos(angle + side)),
                float(stop[1] + 3 * width * np.sin(angle + side)),
            )
            self.line(stop, end, width, color)

    def frame(self, width: float, color: Color) -> None:
        """Draw a border of the given width (in world units) along the edges of the picture."""
        k = max(1, round(width / self.pixel))
        for edge in (np.s_[:k], np.s_[-k:], np.s_[:, :k], np.s_[:, -k:]):
            self.colors[edge] = color

    def image(self) -> UInt8[np.ndarray, "pixels pixels 3"]:
        """The picture as Gymnasium and imageio want it."""
        return np.round(255.0 * self.colors).astype(np.uint8)

    def _around(
        self, center: Point, reach: tuple[float, float]
    ) -> tuple[slice, slice, Float[np.ndarray, "1 columns"], Float[np.ndarray, "rows 1"]]:
        """The pixels that a shape can touch which goes so far from its centre, and their places."""
        columns = self._span(center[0] - self.left, reach[0])
        rows = self._span(self.top - center[1], reach[1])
        x = self.left + (np.arange(columns.start, columns.stop) + 0.5) * self.pixel
        y = self.top - (np.arange(rows.start, rows.stop) + 0.5) * self.pixel
        return rows, columns, x[None, :], y[:, None]

    def _span(self, middle: float, reach: float) -> slice:
        low, high = (middle - reach) / self.pixel - 2, (middle + reach) / self.pixel + 2
        return slice(*(int(np.clip(end, 0, len(self.colors))) for end in (low, high)))

    def _paint(
        self,
        rows: slice,
        columns: slice,
        distance: Float[np.ndarray, "rows columns"],
        color: Color,
        alpha: float = 1.0,
    ) -> None:
        coverage = alpha * np.clip(0.5 - distance / self.pixel, 0.0, 1.0)[..., None]
        patch = self.colors[rows, columns]
        patch += coverage * (np.array(color) - patch)
