"""Source archive and wheel, built as a release is."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Release:
    archive: Path
    wheel: Path


def copy_source(place: Path) -> None:
    """The files that a release is built from: building leaves directories in the tree."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "tests", "*.so", "*.egg-info", "__pycache__")
    shutil.copytree(SOURCE, place, ignore=left_out)


def build_release(directory: Path) -> Release:
    """Build the archive, and the wheel from that archive alone, so that neither can lack what the tree has."""
    copy_source(directory / "sources")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(directory / "dist"), str(directory / "sources")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (directory / "dist").glob("*.tar.gz")
    (wheel,) = (directory / "dist").glob("*.whl")
    return Release(archive, wheel)
