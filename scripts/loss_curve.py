#!/usr/bin/env python3
"""Draws the loss of a run as an SVG, from the JSON lines of train.metrics_file.

  scripts/loss_curve.py METRICS.jsonl --svg FILE [--title TEXT]"""
import argparse
import json
import pathlib

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 38
KEY = "lm loss"


def read_losses(path):
    """Iterations and losses. A resumed run repeats iterations; the last value of each counts."""
    losses = {}
    for line in pathlib.Path(path).read_text().splitlines():
        entry = json.loads(line)
        if entry.get(KEY) is not None:
            losses[entry["iteration"]] = entry[KEY]
    return sorted(losses.items())


def ticks(low, high, steps=(1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000), most=8):
    """Round numbers in [low, high], at most `most` + 1."""
    step = next((step for step in steps if (high - low) / step <= most), steps[-1])
    first = -(-low // step) * step
    return [first + index * step for index in range(int((high - first) // step) + 1)]


def draw(points, title):
    last = max(iteration for iteration, _ in points)
    low, high = int(min(loss for _, loss in points)), int(max(loss for _, loss in points)) + 1

    def x_of(iteration):
        return LEFT + (WIDTH - LEFT - RIGHT) * iteration / last

    def y_of(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="13" font-weight="bold">{title}</text>']
    for loss in ticks(low, high):
        svg.append(f'<path d="M{LEFT} {y_of(loss):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{y_of(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for iteration in ticks(0, last):
        svg.append(f'<text x="{x_of(iteration):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{iteration}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">iteration</text>')
    line = " ".join(f"{x_of(iteration):.1f},{y_of(loss):.1f}" for iteration, loss in points)
    svg.append(f'<polyline points="{line}" fill="none" stroke="#2b6cb0" stroke-width="1.5"/>')
    return "\n".join([*svg, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics")
    parser.add_argument("--svg", required=True)
    parser.add_argument("--title", default="training loss")
    options = parser.parse_args()
    points = read_losses(options.metrics)
    if len(points) < 2:
        parser.error(f"{options.metrics}: needs the loss of at least 2 iterations; it has {len(points)}")
    pathlib.Path(options.svg).write_text(draw(points, options.title))


if __name__ == "__main__":
    main()
