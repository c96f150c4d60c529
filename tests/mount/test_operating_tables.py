"""docs/operating.md has a row for every key of the configuration and every alert, with the defaults in effect."""

import re
from pathlib import Path

import pytest

from commitlogfs.console.units import parse_duration_ms
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import parse_config
from commitlogfs.mount.config.retention import RetentionTable
from commitlogfs.store.retention import AlertCode, Mode, RetentionRules

TEXT = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
DISK = '[[disks]]\npath = "/d"\n'


def rows(heading, first_cell):
    """Cells of the table that begins with `first_cell`, in the section under this heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    _, table = section.split(f"\n| {first_cell} |", maxsplit=1)
    lines = re.match(r"[^\n]*\n\|[-|]+\|\n((?:\|.*\|\n)+)", table)[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def documented_defaults():
    """`[retention]` `mode` counts as mode."""
    return {
        re.findall(r"`([^`]*)`", key)[-1]: default.strip("`") for key, default, _ in rows("Configuration", "key")
    }


@pytest.mark.parametrize("table", ["", "[thresholds]\n", "[retention]\n"])
def test_every_key_has_a_row(table):
    with pytest.raises(ConfigError) as caught:
        parse_config(f'mountpoint = "/m"\n{table}xyzzy = 1\n{DISK}', "demo", "demo.toml")
    known = str(caught.value).split("known here: ")[1].split(", ")
    assert len(known) >= 5
    assert set(known) - {"thresholds", "retention", "disks"} <= set(documented_defaults())


def test_documented_defaults_of_retention():
    documented, rules = documented_defaults(), RetentionRules()
    assert set(RetentionTable.model_fields) <= set(documented)
    assert documented["mode"] == f'"{rules.mode.value}"'
    for key in ("force_after", "grace", "interval"):
        assert parse_duration_ms(documented[key].strip('"')) == getattr(rules, f"{key}_s") * 1000
    assert documented["batch"] == str(rules.batch)
    assert documented["punch"] == str(rules.punch).lower()
    assert (documented["reserved"], documented["delete_when"]) == ("none", "none")


def test_one_row_for_every_mode_and_every_alert():
    assert [row[0] for row in rows("Forced deletion", "mode")] == [f"`{mode.value}`" for mode in Mode]
    assert [row[0] for row in rows("Forced deletion", "alert")] == [f"`{code.value}`" for code in AlertCode]
