"""The twelve kinds of shape, each as a signed distance in its own unit frame: negative inside, about one unit wide."""

from collections.abc import Callable

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def circle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return np.sqrt(x * x + y * y) - np.float32(radius)


def box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - np.float32(half_width), np.abs(y) - np.float32(half_height))


def polygon(x: np.ndarray, y: np.ndarray, corners: int, inradius: float) -> np.ndarray:
    """A regular polygon: the farthest of its sides."""
    turns = [2 * np.pi * (k / corners + 0.25) for k in range(corners)]
    return np.maximum.reduce([x * np.float32(np.cos(t)) + y * np.float32(np.sin(t)) for t in turns]) - np.float32(
        inradius
    )


def disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return circle(x, y, 0.9)


def ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(circle(x, y, 0.74)) - np.float32(0.22)


def square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return box(x, y, 0.78, 0.78)


def frame(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(box(x, y, 0.64, 0.64)) - np.float32(0.2)


def triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return polygon(x, y, 3, 0.56)


def plus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(box(x, y, 0.98, 0.28), box(x, y, 0.28, 0.98))


def star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Five points: fold the plane into half a point and measure to its one side."""
    sector = 2 * np.pi / 5
    angle = np.abs(np.mod(np.arctan2(y, x), sector) - sector / 2)  # 0 in a notch, half a sector at a point
    radius = np.sqrt(x * x + y * y)
    notch, point = 0.42, 1.08
    side = np.array([point * np.cos(sector / 2) - notch, point * np.sin(sector / 2)])
    normal = np.array([side[1], -side[0]]) / np.hypot(*side)
    return ((radius * np.cos(angle) - notch) * normal[0] + radius * np.sin(angle) * normal[1]).astype(np.float32)


def crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(circle(x, y, 0.98), -circle(x - np.float32(0.45), y, 0.76))


def bar(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return box(x, y, 1.0, 0.3)


def ell(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(box(x + np.float32(0.5), y, 0.28, 0.9), box(x, y + np.float32(0.62), 0.78, 0.28))


def heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A square on its corner and a disc on each of its upper sides."""
    u, v = (x + y) * np.float32(0.7071), (y - x) * np.float32(0.7071)
    side = np.float32(0.55)
    lobes = np.minimum(circle(u, v - side, 0.55), circle(u - side, v, 0.55))
    return np.minimum(box(u, v, 0.55, 0.55), lobes)


def arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    slope = np.float32(0.7071)
    head = np.maximum((np.abs(y) + x) * slope - slope, -x + np.float32(0.05))
    return np.minimum(box(x + np.float32(0.45), y, 0.55, 0.22), head)


KINDS: dict[str, Distance] = dict(
    disc=disc,
    ring=ring,
    square=square,
    frame=frame,
    triangle=triangle,
    plus=plus,
    star=star,
    crescent=crescent,
    bar=bar,
    ell=ell,
    heart=heart,
    arrow=arrow,
)
