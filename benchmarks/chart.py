"""Draws a bar chart as SVG: groups of horizontal bars around 1, each with its spread."""

from __future__ import annotations

from html import escape

Figure = tuple[float, float, float]

COLOURS = ["#9aa5b1", "#d8a657", "#2a6fbb", "#57a773", "#8a63a8"]
BAR, GAP, LEFT, WIDTH, TOP = 11, 12, 270, 560, 74


def bars(groups: dict[str, dict[str, Figure]], title: str, notes: list[str]) -> str:
    """Returns the SVG. ``groups`` has for each group the names, medians and middle halves of its bars."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = dict(zip(names, COLOURS, strict=False))
    most = max(high for group in groups.values() for _, _, high in group.values()) * 1.08
    height = TOP + sum(len(group) * BAR + GAP for group in groups.values())

    def x(value: float) -> float:
        return LEFT + value / most * WIDTH

    def text(at: float, y: float, content: str, extra: str = "") -> str:
        return f'<text x="{at:.1f}" y="{y:.1f}" {extra}>{escape(content)}</text>'

    total = height + 28 + 14 * len(notes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {total}" '
        'font-family="sans-serif" font-size="11" fill="#222">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(16, 24, title, 'font-size="16" font-weight="bold"'),
    ]
    at = 16.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{at:.1f}" y="36" width="11" height="11" fill="{colour}"/>')
        parts.append(text(at + 16, 46, name))
        at += 40 + 7 * len(name)
    step = next(one for one in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0) if most / one <= 12)
    for count in range(int(most / step) + 1):
        tick = x(count * step)
        parts.append(f'<line x1="{tick:.1f}" x2="{tick:.1f}" y1="{TOP - 8}" y2="{height}" stroke="#e4e4e4"/>')
        parts.append(text(tick, height + 14, f"{count * step:g}", 'text-anchor="middle"'))
    y = float(TOP)
    labels = []
    for title_of_group, group in groups.items():
        middle = y + len(group) * BAR / 2 + 4
        parts.append(text(LEFT - 10, middle, title_of_group, 'text-anchor="end"'))
        for name, (median, low, high) in group.items():
            centre = y + BAR / 2
            parts.append(
                f'<rect x="{LEFT}" y="{y:.1f}" width="{x(median) - LEFT:.1f}" height="{BAR - 2}" '
                f'fill="{colours[name]}"/>'
            )
            parts.append(
                f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{centre - 1:.1f}" y2="{centre - 1:.1f}" '
                'stroke="#222" stroke-width="1.5"/>'
            )
            label = 'font-size="9" stroke="white" stroke-width="3" paint-order="stroke"'
            labels.append(text(x(max(median, high)) + 5, centre + 2.5, f"{median:.2f}", label))
            y += BAR
        y += GAP
    one = x(1.0)
    parts.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 8}" y2="{height}" stroke="#c0392b"/>')
    parts += labels
    parts += [text(16, height + 34 + 14 * index, note, 'fill="#555"') for index, note in enumerate(notes)]
    return "\n".join([*parts, "</svg>", ""])
