"""The mount that a keeper keeps, as /proc and the kept descriptors show it. Nothing here touches the mountpoint."""

import threading

from commitlogfs.mount.keeper.descriptors import KeptDescriptors
from commitlogfs.mount.linux import fuse_device, mountinfo
from commitlogfs.mount.linux.holders import find_device_holders, find_holders
from commitlogfs.mount.linux.unmount import not_visible
from commitlogfs.store.timing import KeeperTiming


class KeptMount:
    """The mount called `name`, normally at `mountpoint`."""

    def __init__(self, name: str, mountpoint: str, descriptors: KeptDescriptors, timing: KeeperTiming) -> None:
        self._name = name
        self._mountpoint = mountpoint
        self._descriptors = descriptors
        self._timing = timing
        self._search: threading.Thread | None = None
        """Reads /proc for the holders of the mount."""

    def exists(self) -> bool:
        """Whether any process may have files of the mount open, wherever it is by now; otherwise whether a dead
        mount of this name has to be removed, even with other mounts above it."""
        return any(map(fuse_device.is_connected, self._fuse_devices())) or any(
            entry.mountpoint == self._mountpoint and self._is_ours(entry) for entry in mountinfo.read_mounts()
        )

    def is_held(self) -> bool:
        """Whether a process holds the mount; true if that is not known within `holders_s`.

        A thread reads /proc: a process that waits for the mount may make a reader of its mappings wait, too.
        """
        if self._search is not None and self._search.is_alive():
            return True
        found: list[bool] = []

        def search() -> None:
            devices = {fuse_device.mount_device(fd) for fd in self._fuse_devices()} - {None}
            attached = {entry.device for entry in mountinfo.read_mounts()}
            # Detached, but connected: only its holders keep it alive.
            held = bool(devices - attached) or any(find_device_holders(device) for device in devices if device)
            found.append(held or (not devices and bool(find_holders(self._mountpoint))))

        self._search = threading.Thread(target=search, name="holders", daemon=True)
        self._search.start()
        self._search.join(self._timing.holders_s)
        return not found or found[0]

    def require_visible(self) -> None:
        """Raises RefusedError if the topmost mount at the mountpoint is not this one."""
        entry = mountinfo.find_mount(self._mountpoint)
        kept = {fuse_device.mount_device(fd) for fd in self._fuse_devices()} or {None}
        if entry is None or not self._is_ours(entry) or not kept & {None, entry.device}:
            raise not_visible(self._mountpoint)

    def _fuse_devices(self) -> list[int]:
        return [fd for _, fd in self._descriptors.items() if fuse_device.is_fuse_device(fd)]

    def _is_ours(self, entry: mountinfo.MountEntry) -> bool:
        return mountinfo.is_commitlogfs(entry) and entry.source == self._name
