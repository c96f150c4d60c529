"""RocketMQ's own arithmetic, written down from its source."""


def used_percent(total: int, free: int, usable: int) -> int:
    """UtilAll#getDiskPartitionSpaceUsedPercent times 100, in Java's integer arithmetic; -1 for no answer."""
    if total <= 0:
        return -1
    used = total - free
    entire = used + usable
    if entire == 0:
        return -1
    product = used * 100
    assert product < 2**63, "overflows a long"
    return product // entire + (1 if product % entire else 0)
