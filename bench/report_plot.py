"""Plot of all ratios to native; needs matplotlib (the extra `bench`)."""

from collections.abc import Sequence
from pathlib import Path

from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.bench.targets import CONTROL, MERGERFS, MOUNT, NATIVE, PLAIN

_COLOURS = {CONTROL: "#bbbbbb", MOUNT: "#1b7837", PLAIN: "#a6dba0", MERGERFS: "#9970ab"}
_BAR = 0.2


def why_no_plot() -> str:
    """The reason why no plot can be drawn; empty if it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "no plot: matplotlib is not installed (pip install 'commitlogfs[bench]')"
    return ""


def compared(series: Sequence[Series]) -> list[Series]:
    """The workloads that the plot shows: those with ratios to native."""
    return [one for one in series if one.baseline == NATIVE and one.values.keys() - {NATIVE}]


def draw(series: Sequence[Series], path: Path) -> None:
    """Bars of the median ratios with lines from the smallest to the largest; the format is that of the suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = compared(series)
    figure = Figure(figsize=(10, 0.62 * len(shown) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, target in enumerate(_COLOURS):
        rows = [(row, one.ratios(target)) for row, one in enumerate(shown)]
        rows = [(row, ratios) for row, ratios in rows if ratios]
        middle = [sorted(ratios)[len(ratios) // 2] for _, ratios in rows]
        spread = [
            [value - min(ratios) for value, (_, ratios) in zip(middle, rows, strict=True)],
            [max(ratios) - value for value, (_, ratios) in zip(middle, rows, strict=True)],
        ]
        if rows:
            at = [row + (place - 1.5) * _BAR for row, _ in rows]
            axes.barh(at, middle, _BAR, xerr=spread, color=_COLOURS[target], label=target, ecolor="#555555")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [one.workload for one in shown])
    axes.invert_yaxis()
    axes.set_xlabel("ratio to the native directory on the same disks (median of rounds, smallest to largest)")
    axes.legend(loc="best")
    figure.savefig(path)
