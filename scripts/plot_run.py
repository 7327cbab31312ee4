"""Draw a run: reward and lag of each optimizer step, between the successes measured before and after."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "asyncopd"}
_MEASURED = {"student_before": "tab:red", "student_after": "tab:green", "teacher": "tab:gray"}


def draw_reward(axes: Axes, steps: list[dict], summary: dict) -> None:
    """Plot the mean reward of each step's members, and each measured success with its 95 % interval."""
    axes.plot([line["step"] for line in steps], [line["reward"] for line in steps], color="tab:blue", label="reward")
    for name, color in _MEASURED.items():
        measured = summary[name]
        if measured is not None:
            axes.axhspan(measured["low"], measured["high"], color=color, alpha=0.15, linewidth=0)
            axes.axhline(measured["success"], color=color, linewidth=1, label=name.replace("_", " "))
    axes.set(ylabel="success", ylim=(0, 1.02))
    axes.legend(loc="lower right", frameon=False)


def draw_lags(axes: Axes, steps: list[dict], bound: int) -> None:
    """Plot the share of each step's trained tokens at each lag."""
    shares = [
        [line["lags"].get(str(lag), 0) / max(1, sum(line["lags"].values())) for line in steps]
        for lag in range(bound + 1)
    ]
    colors = plt.get_cmap("viridis_r")([0.1 + 0.8 * lag / max(1, bound) for lag in range(bound + 1)])
    labels = [f"lag {lag}" for lag in range(bound + 1)]
    axes.stackplot([line["step"] for line in steps], shares, labels=labels, colors=colors, linewidth=0)
    axes.set(xlabel="optimizer step", ylabel="trained tokens", ylim=(0, 1))
    axes.legend(loc="lower right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a finished run directory")
    parser.add_argument("picture", type=Path, help="an .svg or .png file to write")
    arguments = parser.parse_args()
    steps = [json.loads(line) for line in (arguments.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((arguments.run / "summary.json").read_text(encoding="utf-8"))
    with plt.rc_context(_STYLE):
        figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.5), layout="constrained")
        draw_reward(upper, steps, summary)
        draw_lags(lower, steps, summary["staleness"]["bound"])
        figure.savefig(arguments.picture, metadata={"Date": None} if arguments.picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
