"""The camera and the light of a scene."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Camera:
    """Where the camera stands and how it is turned; `focal` and `centre` are in pixels."""

    position: Floats  # (3,)
    rotation: Floats  # (3, 3) rows: right, down, forward
    focal: float
    centre: tuple[float, float]

    @staticmethod
    def around(target: Floats, azimuth: float, elevation: float, roll: float, distance: float) -> "Camera":
        """A camera directed at `target`; angles in radians, at azimuth 0 and elevation 0 along -z."""
        away = np.array(
            [
                math.sin(azimuth) * math.cos(elevation),
                math.sin(elevation),
                math.cos(azimuth) * math.cos(elevation),
            ]
        )
        right = np.array([math.cos(azimuth), 0.0, -math.sin(azimuth)])
        down = np.cross(-away, right)
        turned = np.array(
            [
                right * math.cos(roll) + down * math.sin(roll),
                down * math.cos(roll) - right * math.sin(roll),
                -away,
            ]
        )
        return Camera(target + distance * away, turned, 1.0, (0.0, 0.0))

    def project(self, points: Floats) -> Floats:
        """Pixels (n, 2) of points (n, 3)."""
        seen = (points - self.position) @ self.rotation.T
        return np.asarray(self.focal * seen[:, :2] / seen[:, 2:] + np.array(self.centre))

    def frame(self, points: Floats, middle: tuple[float, float], longest: float) -> "Camera":
        """The same view zoomed so that `points` span `longest` pixels around `middle`: a crop of a wider photo."""
        plain = replace(self, focal=1.0, centre=(0.0, 0.0)).project(points)
        low, high = plain.min(0), plain.max(0)
        focal = longest / float((high - low).max())
        shift = np.array(middle) - focal * (low + high) / 2
        return replace(self, focal=focal, centre=(float(shift[0]), float(shift[1])))

    def magnify(self, times: float) -> "Camera":
        """The same view on a canvas so many times larger."""
        return replace(
            self, focal=self.focal * times, centre=(self.centre[0] * times, self.centre[1] * times)
        )


@dataclass(frozen=True)
class Light:
    """One far lamp over an even glow."""

    direction: Floats  # (3,) unit, towards the lamp
    ambient: float

    def on(self, normal: Floats) -> float:
        """Brightness of a matt surface."""
        return self.ambient + (1 - self.ambient) * max(0.0, float(normal @ self.direction))
