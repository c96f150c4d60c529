"""Where the path of a disk leads."""

from pathlib import Path

import pytest
from support.pooled import open_parts

from commitlogfs.store.checks.place import NOWHERE, Place, Whereabouts, judge, look

POOL, DISK = "pool", "disk"


@pytest.mark.parametrize(
    ("place", "served", "expected"),
    [
        (Place(1, 2, POOL, DISK), (1, 2), Whereabouts.HERE),
        (Place(1, 2, "", ""), (1, 2), Whereabouts.HERE),
        (Place(3, 2, POOL, DISK), (1, 2), Whereabouts.BACK),
        (Place(1, 3, POOL, DISK), (1, 2), Whereabouts.BACK),
        (Place(3, 2, POOL, DISK), None, Whereabouts.BACK),
        (Place(3, 2, POOL, "another"), (1, 2), Whereabouts.AWAY),
        (Place(3, 2, "another", DISK), None, Whereabouts.AWAY),
        (Place(3, 2, "", ""), (1, 2), Whereabouts.AWAY),
        (NOWHERE, (1, 2), Whereabouts.AWAY),
        (NOWHERE, None, Whereabouts.AWAY),
    ],
)
def test_where_a_disk_is(place, served, expected):
    assert judge(place, POOL, DISK, served) is expected


def test_what_a_path_leads_to(workdir: Path):
    with open_parts(workdir) as parts:
        disk = next(iter(parts.commitlog.disks.values()))
        path = Path(disk.path)
        seen = look(disk.path)
        assert (seen.pool_id, seen.disk_id) == (parts.commitlog.pool_id, disk.disk_id)
        assert (seen.device, seen.inode) == (path.stat().st_dev, path.stat().st_ino)
        bare = path.parent / "bare"
        bare.mkdir()
        assert look(str(bare)) == Place(bare.stat().st_dev, bare.stat().st_ino, "", "")
        (path.parent / "file").touch()
        assert look(str(path.parent / "file")) == look(str(path.parent / "absent")) == NOWHERE
