"""Taking over a broker's own store in place, and going back."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import check_all, complaints, send_all
from support.command_line import run_cli
from support.pools import MIB
from support.waiting import PATIENCE_S

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 3000
RECIPE = Path(__file__).parents[2] / "docs" / "adopting.md"


@pytest.mark.soak
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_native_multi_path_store_is_adopted_and_given_back(version, new_stand):
    """4.9.7 refuses to load a commitlog directory with any other entry, so it proves that nothing is left."""
    distribution = rocketmq.fetch(version)
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=MIB)
    pool, directories = stand.pool, stand.directories()
    native = {"storePathCommitLog": ",".join(map(str, directories))}
    mounted = {"storePathCommitLog": str(pool.mountpoint)}
    broker = stand.broker(distribution, native)
    broker.start()
    native_sent = send_all(distribution, stand.names, "Native", COUNT)
    broker.kill()
    before = segments_of(directories)
    assert all(before.values())

    pool.adopt()
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == sorted(name for names in before.values() for name in names)
    broker.config.update(mounted)
    broker.start()
    check_all(distribution, stand.names, "Native", native_sent)
    mounted_sent = send_all(distribution, stand.names, "Mounted", COUNT)
    assert complaints(broker) == []
    broker.kill()
    assert "unexpected_error" not in pool.log_since_start()
    pool.stop()
    assert sum(map(len, segments_of(directories).values())) > sum(map(len, before.values()))

    broker.config.update(native)
    broker.start()
    check_all(distribution, stand.names, "Native", native_sent)
    check_all(distribution, stand.names, "Mounted", mounted_sent)
    assert complaints(broker) == []
    broker.kill()

    # And back once more: the identity is still there, so a plain mount does.
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == sorted(
        name for names in segments_of(directories).values() for name in names
    )


def segments_of(directories):
    """Every entry of each directory; anything but segments would stop a 4.9 broker."""
    found = {directory: sorted(os.listdir(directory)) for directory in directories}
    assert all(re.fullmatch(r"[0-9]{20}", name) for names in found.values() for name in names), found
    return found


def test_commitlog_at_the_future_mountpoint_is_adopted_by_the_recipe(new_stand, newest):
    stand = new_stand(("ext4", "ext4"), segment_size=MIB)
    pool = stand.pool
    store = pool.mountpoint.parent
    broker = stand.broker(newest)
    broker.start()
    native_sent = send_all(newest, stand.names, "Native", COUNT)
    assert broker.stop() == 143
    old = sorted(os.listdir(pool.mountpoint))
    consumequeue = store / "consumequeue" / "Native"
    assert consumequeue.is_dir()

    # The recipe's own commands, with this test's paths in place of the example's.
    run_recipe(
        recipe_commands(),
        {
            "/var/rocketmq/store": str(store),
            "/data1": str(stand.disks[0].path),
            "/data2": str(stand.disks[1].path),
            "/etc/commitlogfs": str(pool.workdir),
            "1GiB": str(MIB),
            "commitlogfs adopt broker": f"commitlogfs adopt {pool.workdir}/broker.toml",
            "commitlogfs mount --daemon broker": f"commitlogfs mount --daemon {pool.workdir}/broker.toml",
            "commitlogfs ready broker": f"commitlogfs ready {pool.workdir}/broker.toml",
        },
        pool,
    )
    try:
        assert sorted(os.listdir(pool.mountpoint)) == old
        assert sorted(os.listdir(store / "commitlog.disk1")) == old
        broker.start()
        mounted_sent = send_all(newest, stand.names, "Mounted", COUNT)
        check_all(newest, stand.names, "Native", native_sent)
        check_all(newest, stand.names, "Mounted", mounted_sent)
        assert complaints(broker) == []
        # In turn: the old directory was the first disk, so the new ones follow.
        made = sorted(set(os.listdir(pool.mountpoint)) - set(old))
        places = [store / "commitlog.disk1", *(disk.path / "commitlog" for disk in stand.disks)]
        at = [next(i for i, place in enumerate(places) if (place / name).exists()) for name in made]
        assert len(made) >= 3
        assert at == [(i + 1) % 3 for i in range(len(made))]
    finally:
        broker.kill()
        ran = run_cli("umount", "--unguard", str(pool.mountpoint), env=pool.env)
    assert ran.status == 0, ran.err


def recipe_commands() -> str:
    """The shell block under the recipe's heading, without the two lines about the broker's own unit."""
    text = RECIPE.read_text()
    section = text.split("## A commitlog at the future mountpoint")[1].split("\n## ")[0]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    kept = [line for line in lines if not line.startswith("systemctl ")]
    assert len(lines) - len(kept) == 2
    return "\n".join(kept)


def run_recipe(commands, substitutions, pool):
    for example, real in sorted(substitutions.items(), key=lambda item: -len(item[0])):
        assert example in commands, f"the recipe no longer says {example}"
        commands = commands.replace(example, real)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        capture_output=True,
        text=True,
        env={**os.environ, **pool.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
