"""The result of `commitlogfs bench`, as a document, as tables in a terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from commitlogfs.bench.datapath_rounds import Series
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.figures import median, target_as_json
from commitlogfs.bench.moves.figures import MoveFigures
from commitlogfs.bench.recovery import Recovery
from commitlogfs.bench.report_goals import Goal, goals
from commitlogfs.bench.scrub.figures import ScrubFigures

LAYOUT = 3


@dataclass(slots=True)
class Results:
    settings: Settings
    environment: dict[str, Any]
    disks: str = ""
    series: list[Series] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    """Description of each target."""
    left_out: dict[str, str] = field(default_factory=dict)
    own_cost_us: dict[str, float] = field(default_factory=dict)
    recovery: list[Recovery] = field(default_factory=list)
    """Results for each load."""
    moves: MoveFigures = field(default_factory=MoveFigures)
    scrub: ScrubFigures = field(default_factory=ScrubFigures)
    failure: str = ""
    """The error that has ended the run early."""

    @property
    def goals(self) -> list[Goal]:
        return goals(self.series)

    def as_json(self) -> dict[str, Any]:
        """The result as JSON, layout 3. A change of its meaning changes this number."""
        return {
            "layout": LAYOUT,
            "environment": self.environment,
            "settings": self.settings.as_json(),
            "failure": self.failure or None,
            "disks": self.disks,
            "targets": self.about,
            "left_out": self.left_out,
            "own_cost_us_per_step": self.own_cost_us,
            "workloads": [series.as_json() for series in self.series],
            "recovery": [{**one.as_json(), "target": target_as_json(one.target())} for one in self.recovery],
            "moves": self.moves.as_json(),
            "scrub": self.scrub.as_json(),
            "goals": [goal.as_json() for goal in self.goals],
        }


Rows = list[tuple[str, ...]]


def figure_rows(series: Sequence[Series]) -> Rows:
    """Workload, unit, target, median, spread, median ratio to the baseline, its spread."""
    rows: Rows = []
    for one in series:
        for position, (target, values) in enumerate(one.values.items()):
            ratios = one.ratios(target)
            rows.append(
                (
                    one.workload if position == 0 else "",
                    one.unit if position == 0 else "",
                    target,
                    _number(median(values)),
                    f"{_number(min(values))} .. {_number(max(values))}",
                    f"{median(ratios):.2f}" if ratios else "",
                    f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else "",
                )
            )
    return rows


def goal_rows(found: Sequence[Goal]) -> Rows:
    return [
        (
            goal.workload,
            f"{goal.target} / {goal.against}",
            goal.required,
            "" if goal.ratio is None else f"{goal.ratio:.3f}",
            goal.verdict,
        )
        for goal in found
    ]


FIGURE_HEADINGS = ("workload", "unit", "target", "median", "min .. max", "ratio", "min .. max")
GOAL_HEADINGS = ("workload", "ratio", "required", "measured", "")


def show(console: Console, results: Results) -> None:
    for line in facts(results):
        console.print(line, markup=False, soft_wrap=True)
    rows = _unit_below_name(figure_rows(results.series))
    headings = (FIGURE_HEADINGS[0], *FIGURE_HEADINGS[2:])
    _table(console, f"Median of {results.settings.rounds} rounds", headings, rows)
    _table(console, "Numbers to reach", GOAL_HEADINGS, goal_rows(results.goals))


def as_markdown(results: Results) -> str:
    lines = [f"- {line}" for line in facts(results)]
    for headings, rows in (
        (FIGURE_HEADINGS, figure_rows(results.series)),
        (GOAL_HEADINGS, goal_rows(results.goals)),
    ):
        lines += ["", _markdown_row(headings), _markdown_row(["---"] * len(headings))]
        lines += [_markdown_row(row) for row in rows]
    return "\n".join(lines) + "\n"


def facts(results: Results) -> list[str]:
    """Lines that describe the conditions of the run."""
    where = results.environment
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    load = " ".join(map(str, where["load_average"]))
    after = " ".join(map(str, where.get("load_average_after", [])))
    lines = [
        f"{where['taken_at']}, Linux {where['kernel']}, {where['cpus']} CPUs, Python {where['python']}, {versions}",
        f"load average {load} before, {after} after",
        f"disks: {results.disks}",
    ]
    lines += [f"{name}: {text}" for name, text in results.about.items()]
    lines += [f"left out: {name}: {reason}" for name, reason in results.left_out.items()]
    if results.own_cost_us:
        own = ", ".join(f"{name} {cost} us" for name, cost in results.own_cost_us.items())
        lines.append(f"own cost of the measuring loop per step: {own}")
    if results.failure:
        lines.append(f"incomplete: {results.failure}")
    lines += [_recovery_in_words(recovery) for recovery in results.recovery]
    return lines + results.moves.in_words() + results.scrub.in_words()


def _recovery_in_words(recovery: Recovery) -> str:
    target = recovery.target()
    verdict = "met" if target.is_met else "missed"
    text = (
        f"daemon killed {len(recovery.seconds)} times beside {recovery.load} busy processes per processor: serves "
        f"again after {_spread(recovery.seconds)}, required < {target.limit:g} s: {verdict}; an ordinary client "
        f"has its answers after {_spread(recovery.ordinary_seconds)}; requests failed: {len(recovery.failed)}"
    )
    if recovery.floor_seconds:
        text += f"; floor {_spread(recovery.floor_seconds, 4)}"
    return text


def _spread(seconds: Sequence[float], digits: int = 3) -> str:
    return f"{median(seconds):.{digits}f} s (worst {max(seconds):.{digits}f})"


def _table(console: Console, title: str, headings: Sequence[str], rows: Rows) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=None)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row, style="red" if row[-1].startswith("missed") else "")
    console.print()
    console.print(table, crop=False)


def _unit_below_name(rows: Rows) -> Rows:
    """The rows without the column of units, so that a line fits 80 columns: the unit goes below the workload's
    name."""
    merged: Rows = []
    unit = ""
    for workload, own_unit, *rest in rows:
        merged.append((workload or unit, *rest))
        unit = f"  {own_unit}" if own_unit else ""
    return merged


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
