"""Colors for tests: contrast (WCAG 2), the difference CIEDE2000, and three kinds of color blindness."""

from __future__ import annotations

from itertools import combinations
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

Triple = tuple[float, float, float]
# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS: Final[dict[str, tuple[Triple, Triple, Triple]]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(color: str) -> Triple:
    digits = color[1:] if len(color) == 7 else "".join(2 * each for each in color[1:])
    values = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in values)
    return red, green, blue


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colors by WCAG 2."""
    lights = sorted(_luminance(linear(each)) for each in (first, second))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def closest_pair(colors: Sequence[str]) -> float:
    """Return the smallest difference (CIEDE2000) of any two colors, for any kind of vision."""
    return min(
        difference(_lab(_seen(first, matrix)), _lab(_seen(second, matrix)))
        for matrix in VISIONS.values()
        for first, second in combinations(colors, 2)
    )


def _luminance(color: Triple) -> float:
    return 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2]


def _seen(color: str, matrix: tuple[Triple, Triple, Triple]) -> Triple:
    given = linear(color)
    red, green, blue = (
        min(max(sum(weight * value for weight, value in zip(row, given, strict=True)), 0.0), 1.0) for row in matrix
    )
    return red, green, blue


def _lab(color: Triple) -> Triple:
    red, green, blue = color
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    fx, fy, fz = (each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(first: Triple, second: Triple) -> float:
    """Return the difference of two colors by CIEDE2000."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_chroma = (hypot(a1, b1) + hypot(a2, b2)) / 2
    gain = 0.5 * (1 - sqrt(mean_chroma**7 / (mean_chroma**7 + 25**7)))
    c1, c2 = hypot(a1 * (1 + gain), b1), hypot(a2 * (1 + gain), b2)
    h1, h2 = (degrees(atan2(b, a * (1 + gain))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * sqrt(c1 * c2) * sin(radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    weight = (
        1
        - 0.17 * cos(radians(hue - 30))
        + 0.24 * cos(radians(2 * hue))
        + 0.32 * cos(radians(3 * hue + 6))
        - 0.20 * cos(radians(4 * hue - 63))
    )
    sl = 1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * weight
    rotation = -2 * sqrt(chroma**7 / (chroma**7 + 25**7)) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rotation * dc / sc * dh / sh)
