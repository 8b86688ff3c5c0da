"""Line charts as SVG: figures only, no styles of their own (the style sheet colours them), readable aloud."""

import time
from collections.abc import Sequence

from markupsafe import Markup

from tidelog.console.history import Sample

WIDTH = 640
HEIGHT = 190
_LEFT = 52
_RIGHT = 8
_TOP = 10
_BOTTOM = 22
_STEPS = (1, 2, 2.5, 5, 10)


def short_number(value: float) -> str:
    """1234567 as 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            text = f"{value / limit:.1f}"
            return text.removesuffix(".0") + unit
    return f"{value:.0f}" if value == round(value) or abs(value) >= 10 else f"{value:.1f}"


def nice_ceiling(value: float) -> float:
    """The next round number, so that axes have labels people can read."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in _STEPS if step * power >= value)


def line_chart(samples: Sequence[Sample], title: str, height: int = HEIGHT) -> Markup:
    """A chart of one series; with fewer than two points a sentence that says so."""
    if len(samples) < 2:
        return Markup('<p class="muted chart-empty">Collecting samples for this chart …</p>')
    start, end = samples[0].at, samples[-1].at
    span = max(end - start, 1e-9)
    top = nice_ceiling(max(sample.value for sample in samples))
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def at_x(moment: float) -> float:
        return _LEFT + (moment - start) / span * inner_width

    def at_y(value: float) -> float:
        return _TOP + (1 - value / top) * inner_height

    points = " L".join(f"{at_x(sample.at):.1f},{at_y(sample.value):.1f}" for sample in samples)
    floor = at_y(0)
    pieces = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, height, f"{title}: now {short_number(samples[-1].value)}, at most {short_number(top)}"
        )
    ]
    for share in (0.0, 0.5, 1.0):
        y = at_y(top * share)
        pieces.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(_LEFT, WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, short_number(top * share))
        )
    pieces.append(
        Markup('<path class="area" d="M{:.1f},{:.1f} L{} L{:.1f},{:.1f} Z"/>').format(
            at_x(start), floor, points, at_x(end), floor
        )
    )
    pieces.append(Markup('<path class="line" d="M{}"/>').format(points))
    for moment, anchor in ((start, "start"), (end, "end")):
        clock = time.strftime("%H:%M:%S", time.localtime(moment))
        pieces.append(
            Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                at_x(moment), height - 6, anchor, clock
            )
        )
    pieces.append(Markup("</svg>"))
    return Markup("").join(pieces)


def spark_line(samples: Sequence[Sample], width: int = 96, height: int = 22) -> Markup:
    """A small line without axes, for tables."""
    if len(samples) < 2:
        return Markup("")
    recent = samples[-60:]
    start, span = recent[0].at, max(recent[-1].at - recent[0].at, 1e-9)
    top = max(max(sample.value for sample in recent), 1e-9)
    points = " L".join(
        f"{(sample.at - start) / span * width:.1f},{1 + (1 - sample.value / top) * (height - 2):.1f}"
        for sample in recent
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true">'
        '<path class="line" d="M{}"/></svg>'
    ).format(width, height, width, height, points)
