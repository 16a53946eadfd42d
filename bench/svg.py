"""The parts of a bar chart in SVG."""
from __future__ import annotations

import html
from collections.abc import Iterable

BAR, GAP = 14, 10
"""The height of a bar in pixels, and the gap between two groups of bars."""


def text(x: float, y: float, content: str, more: str = '') -> str:
    """Return a text element. `more` has further attributes."""
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{html.escape(content)}</text>'


def key(x: float, y: float, colour: str) -> str:
    """Return a square of the given colour for the legend."""
    return f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'


def bar(x: float, y: float, length: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{length:.0f}" height="{BAR - 2}" fill="{colour}"/>'


def picture(width: int, height: float, parts: Iterable[str]) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n' + '\n'.join(parts) + '\n</svg>\n')
