"""Charts as inline SVG: axes with units, round ticks, the last value in words. Colours are the page's CSS variables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from campaign.model import Night, Sample
from campaign.page.markup import Html, absent, element
from campaign.page.text import moment, plain, si

WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 50, 26, 40
MOST_POINTS = 160  # of a line: more than its pixels can show would only make the page larger
MOST_NIGHTS = 60


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that needs at most `most` steps for the span."""
    if span <= 0 or not math.isfinite(span):
        return 1
    power = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1, 2, 5, 10):
        if span / (factor * power) <= most * (1 + 1e-9):
            return factor * power
    return 10 * power


def nice_ticks(low: float, high: float, most: int = 4, smallest: float = 0) -> list[float]:
    """Round numbers from at or below low to at or above high, three to six of them."""
    step = max(nice_step(high - low, most), smallest)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def y_ticks(values: list[float], from_zero: bool) -> list[float]:
    """From zero, unless that would flatten a line which moves in the upper part only."""
    low, high = min(values), max(values)
    low = 0 if from_zero or low < high / 2 or low == high else low
    return nice_ticks(low, high if high > low else low + 1, smallest=1)


def thinned(points: list[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Every k-th point, the last one always."""
    if len(points) <= most:
        return points
    step = math.ceil(len(points) / (most - 1))
    return points[:-1:step] + [points[-1]]


@dataclass
class Scale:
    """Data to pixels, one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + min(max(share, 0), 1) * (self.end - self.start), 1)


def _text(x: float, y: float, words: str, anchor: str = "start", class_: str = "tick") -> Html:
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _y_axis(ticks: list[float], scale: Scale, label: str) -> list[Html]:
    parts = [_text(4, 13, label, class_="label")]
    for tick in ticks:
        y = scale(tick)
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        parts.append(_text(LEFT - 6, y + 4, si(tick), "end"))
    return parts


def _x_title(label: str) -> Html:
    return _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, label, "middle", "label")


def _last_value(x: float, y: float, value: float, colour: str) -> list[Html]:
    # A value of zero stands a little above the axis, whose labels are below.
    words = _text(x + 8, min(y + 4, HEIGHT - BOTTOM), si(value), class_="value")
    return [element("circle", cx=x, cy=y, r=4, class_=f"dot {colour}"), words]


def _svg(parts: list[Html], words: str) -> Html:
    return element("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=words, class_="chart")


def _path(points: list[tuple[float, float]], colour: str) -> Html:
    steps = " ".join(f"{x:g},{y:g}" for x, y in points)
    return element("polyline", points=steps, class_=f"series {colour}")


def core_time_unit(seconds: float) -> tuple[float, str]:
    """So that the axis of a night does not count in tens of thousands."""
    if seconds > 2 * 3600:
        return 3600, "core-hours"
    return (60, "core-minutes") if seconds > 600 else (1, "core-seconds")


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def over_time(samples: list[Sample], field: str, label: str, colour: str, from_zero: bool = False) -> Html:
    """A value of a target over the core-time it has had."""
    if not samples:
        return absent("No sample was taken.")
    data = [(_finite(s.core_s), _finite(getattr(s, field))) for s in sorted(samples, key=lambda s: s.core_s)]
    unit, unit_name = core_time_unit(data[-1][0])
    # A run of no time at all still needs an axis.
    end = max(data[-1][0] / unit, 0.1)
    ticks_x = [tick for tick in nice_ticks(0, end, most=5) if tick <= end]
    ticks_y = y_ticks([value for _, value in data], from_zero)
    x = Scale(0, end, LEFT, WIDTH - RIGHT)
    y = Scale(ticks_y[0], ticks_y[-1], HEIGHT - BOTTOM, TOP)
    points = [(x(core_s / unit), y(value)) for core_s, value in thinned(data)]
    parts = _y_axis(ticks_y, y, label)
    for tick in ticks_x:
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 16, si(tick), "middle"))
        parts.append(_line(x(tick), HEIGHT - BOTTOM, x(tick), HEIGHT - BOTTOM + 4, "axis"))
    parts += [_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"), _x_title(unit_name)]
    parts += [_path(points, colour), *_last_value(*points[-1], data[-1][1], colour)]
    first, last = data[0][1], data[-1][1]
    words = f"{label} over {unit_name}: {plain(first)} first, {plain(last)} after {data[-1][0] / unit:.3g} {unit_name}"
    return _svg(parts, words)


def _night_labels(nights: list[Night]) -> list[str]:
    moments = [moment(night.began) for night in nights]
    days = [f"{m:%m-%d}" if m else "?" for m in moments]
    if len(set(days)) == len(days):
        return days
    return [f"{m:%m-%d %H:%M}" if m else "?" for m in moments]  # several campaigns a day


def over_nights(nights: list[Night], field: str, label: str, colour: str, median: float | None) -> Html:
    """A value of a target in each campaign, oldest first, and the median of those before this one as a dashed line."""
    if not nights:
        return absent("No campaign is on record.")
    nights = nights[-MOST_NIGHTS:]
    values = [_finite(getattr(night, field)) for night in nights]
    ticks_y = y_ticks(values, from_zero=field == "rate")
    y = Scale(ticks_y[0], ticks_y[-1], HEIGHT - BOTTOM, TOP)
    # One night stands at the right end, where the latest always stands.
    x = Scale(0, len(nights) - 1, LEFT + 14, WIDTH - RIGHT) if len(nights) > 1 else Scale(-1, 0, LEFT, WIDTH - RIGHT)
    parts = _y_axis(ticks_y, y, label)
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
    parts += _night_ticks(_night_labels(nights), x)
    parts.append(_x_title("campaign, month-day (UTC)"))
    if median is not None:
        parts.append(_line(LEFT, y(median), WIDTH - RIGHT, y(median), "median"))
    points = [(x(i), y(value)) for i, value in enumerate(values)]
    parts.append(_path(points, colour))
    for night, value, (cx, cy) in zip(nights[:-1], values, points):
        title = element("title", f"{night.campaign}: {plain(value)}")
        parts.append(element("circle", title, cx=cx, cy=cy, r=2.5, class_=f"dot {colour}"))
    parts += _last_value(*points[-1], values[-1], colour)
    words = f"{label} in {len(nights)} campaigns, oldest first: " + ", ".join(plain(value) for value in values[-10:])
    return _svg(parts, words)


def _night_ticks(labels: list[str], x: Scale) -> list[Html]:
    """As many as fit without touching, counted from the latest back."""
    width = max(len(label) for label in labels) * 6.8 + 10
    spacing = (x(1) - x(0)) if len(labels) > 1 else WIDTH
    step = max(1, math.ceil(width / spacing)) if spacing > 0 else len(labels)
    parts = []
    for i, label in enumerate(labels):
        parts.append(_line(x(i), HEIGHT - BOTTOM, x(i), HEIGHT - BOTTOM + 4, "axis"))
        if (len(labels) - 1 - i) % step == 0:
            parts.append(_text(x(i), HEIGHT - BOTTOM + 16, label, "middle"))
    return parts


def sparkline(values: list[float], colour: str, words: str) -> Html:
    """A line of a word's size, for the shape alone: the numbers stand beside it."""
    width, height, margin = 88, 24, 4
    if len(values) < 2:
        return Html("")
    values = [value for _, value in thinned([(0, _finite(value)) for value in values], 60)]
    x = Scale(0, len(values) - 1, margin, width - margin)
    y = Scale(min(values), max(values), height - margin, margin)
    points = [(x(i), y(value)) for i, value in enumerate(values)]
    dot = element("circle", cx=points[-1][0], cy=points[-1][1], r=2.5, class_=f"dot {colour}")
    return element(
        "svg", _path(points, colour), dot, viewBox=f"0 0 {width} {height}", role="img", aria_label=words, class_="spark"
    )
