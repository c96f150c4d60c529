"""Figures that statfs shows. The broker takes its 75/85/90 decisions by them. Pure.

RocketMQ computes ceil(100 * used / (used + usable)) with used = total - free, from three separate calls
(UtilAll#getDiskPartitionSpaceUsedPercent). So the figures are computed from a ratio: the total is a multiple of 100
blocks, and free equals available. RocketMQ's arithmetic then gives exactly the whole percent of the deciding disk.
"""

from dataclasses import dataclass
from fractions import Fraction

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention.rules import Mode, Trigger
from commitlogfs.store.thresholds import Thresholds

BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DiskShare:
    """One disk as statfs sees it."""

    state: DiskState
    usage: DiskUsage | None
    segment_bytes: int
    """Bytes that deleting all our segments there would free, as far as is known."""
    thresholds: Thresholds


@dataclass(frozen=True, slots=True)
class StatfsFigures:
    """Figures in blocks of BLOCK_BYTES. The broker computes `used_ratio` from them and rounds it up."""

    blocks: int
    free: int
    used_ratio: Fraction

    @property
    def shown_percent(self) -> int:
        """The whole percent that the broker computes from these figures."""
        return -(-(self.blocks - self.free) * 100 // self.blocks)


def compose(
    shares: tuple[DiskShare, ...], trigger: Trigger, mode: Mode = Mode.COOPERATIVE, *, forced_are_open: bool = False
) -> StatfsFigures:
    """Figures for these disks. Used and total always come from the same disks: the writable ones that answer.

    Without such a disk, the disks that answer are shown, never above `clean`. `forced_are_open`: processes have
    segments open that were removed by force. A broker takes them for expired, since a file without a name has no
    modification time, and closes them; but it checks this above `clean` only, so one percent more is shown.
    """
    answering = [share for share in shares if share.usage is not None and share.usage.entire_bytes > 0]
    writable = [share for share in answering if share.state is DiskState.RW]
    if not writable:
        return _without_writable(answering)
    ratio = _ratio_shown(writable, trigger, mode)
    if forced_are_open and mode is not Mode.OFF:
        ratio = max(ratio, *(_above_clean(share) for share in writable))
    return _scale(sum(_entire(share) for share in writable), ratio)


def _ratio_shown(writable: list[DiskShare], trigger: Trigger, mode: Mode) -> Fraction:
    pressures = [pressure for share in writable if (pressure := _pressure(share, mode)) is not None]
    if not pressures:
        return min(_limit(share) for share in writable)
    return min(pressures) if trigger is Trigger.ALL else max(pressures)


def _without_writable(answering: list[DiskShare]) -> StatfsFigures:
    if not answering:
        return _scale(0, Fraction(0))
    total = sum(_entire(share) for share in answering)
    used = sum(share.usage.used_bytes for share in answering if share.usage)
    return _scale(total, min(Fraction(used, total), *(_limit(share) for share in answering)))


def _pressure(share: DiskShare, mode: Mode) -> Fraction | None:
    """Ratio with which one disk takes part in the decision; None if it does not.

    A disk that deleting cannot relieve shows at most `clean` while it takes segments, and does not count once it
    does not: it must neither cause deletion nor hide the pressure of disks where deleting helps. In mode FILESYSTEM
    every disk shows at most `clean` until it is at `full`, because the broker is not to delete. OFF hides nothing.
    """
    ratio = _ratio(share)
    if mode is Mode.OFF:
        return ratio
    if _is_curable(share):
        hidden = mode is Mode.FILESYSTEM and ratio * 100 < share.thresholds.full
        return min(ratio, _limit(share)) if hidden else ratio
    takes_segments = ratio * 100 < share.thresholds.force
    return min(ratio, _limit(share)) if takes_segments else None


def _above_clean(share: DiskShare) -> Fraction:
    """One percent above `clean`, which makes a broker search for expired files; never above `force`."""
    return Fraction(min(share.thresholds.clean + 1, share.thresholds.force), 100)


def _is_curable(share: DiskShare) -> bool:
    """Whether deleting our segments could bring this disk below `clean`.

    If not, because of foreign data, a broker that was shown the pressure would empty the log for nothing.
    """
    assert share.usage is not None
    foreign = share.usage.used_bytes - share.segment_bytes
    return foreign * 100 < share.thresholds.clean * share.usage.entire_bytes


def _limit(share: DiskShare) -> Fraction:
    return Fraction(share.thresholds.clean) / 100


def _ratio(share: DiskShare) -> Fraction:
    return share.usage.used_ratio if share.usage else Fraction(1)


def _entire(share: DiskShare) -> int:
    return share.usage.entire_bytes if share.usage else 0


def _scale(total_bytes: int, ratio: Fraction) -> StatfsFigures:
    """Figures for a total and a ratio. Never zero blocks, which the broker takes for -1; free space in whole
    blocks."""
    blocks = max(100, total_bytes // BLOCK_BYTES // 100 * 100)
    used = -(-blocks * ratio.numerator // ratio.denominator)
    return StatfsFigures(blocks, blocks - used, ratio)
