#!/usr/bin/env python3
"""Draws a trace of ipc-cache-lat: picture.py TRACE.json PICTURE.png [TITLE...]. Needs matplotlib.

Each attach of the trace is one panel, all on the same scale from its own beginning: a line for what the engine did, one for the
broker, and below them how many block requests were under way. Perfetto (ui.perfetto.dev) shows the same file with all details.
"""
import json
import sys

from matplotlib import pyplot

PHASES = ("connect", "request", "manifest", "sources", "map")
COLORS = dict(zip(PHASES, ("#7a9cc6", "#5fad56", "#f2c14e", "#d1495b", "#6c5b7b")))


def attaches(events):
    """The attaches: (begin, end, pid, slices), times in ms."""
    ended = [event for event in events if event["ph"] == "X"]
    for connect in sorted((event for event in ended if event["name"] == "connect"), key=lambda event: event["ts"]):
        own = [event for event in ended if event["pid"] == connect["pid"]]
        end = max(event["ts"] + event["dur"] for event in own)
        yield connect["ts"], end, connect["pid"], own


def requests(events, pid):
    """Begin and end of each block request of a process."""
    begun, done = {}, []
    for event in events:
        if event["name"] != "block request" or event["pid"] != pid:
            continue
        if event["ph"] == "b":
            begun[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            done.append((begun[event["id"]], event["ts"]))
    return done


def depth(pairs):
    """Steps of how many are under way."""
    changes = sorted([(begin, 1) for begin, _ in pairs] + [(end, -1) for _, end in pairs])
    times, depths, under_way = [], [], 0
    for time, change in changes:
        under_way += change
        times.append(time)
        depths.append(under_way)
    return times, depths


def draw(axis, events, attach, title):
    begin, end, pid, own = attach
    for event in own:
        if event["name"] in PHASES:
            axis.broken_barh([((event["ts"] - begin) / 1000, event["dur"] / 1000)], (2.1, 0.8), color=COLORS[event["name"]])
    for event in events:
        if event["ph"] == "X" and event["name"] == "broker" and begin <= event["ts"] <= end:
            axis.broken_barh([((event["ts"] - begin) / 1000, event["dur"] / 1000)], (1.1, 0.8), color="black")
    times, depths = depth(requests(events, pid))
    most = max(depths, default=0)
    if most > 0:
        axis.fill_between([(time - begin) / 1000 for time in times], [0.85 * value / most for value in depths], step="post",
                          color="#888888")
    axis.set_yticks([0.45, 1.5, 2.5], [f"disk (at most {most})" if most else "disk (nothing)", "broker", "engine"])
    axis.set_ylim(0, 3)
    axis.set_title(f"{title}: {(end - begin) / 1000:.1f} ms", loc="left", fontsize=10)


def main(trace, picture, *titles):
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found = list(attaches(events))[:max(1, len(titles)) if titles else None]
    figure, axes = pyplot.subplots(len(found), 1, sharex=True, figsize=(9, 1.5 * len(found) + 0.8), squeeze=False)
    for i, (axis, attach) in enumerate(zip(axes[:, 0], found)):
        draw(axis, events, attach, titles[i] if i < len(titles) else f"pid {attach[2]}")
    axes[-1, 0].set_xlabel("ms since the attach began")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLORS[name]) for name in PHASES]
    figure.legend(handles, PHASES, loc="upper right", ncols=len(PHASES), fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
