"""The metrics of all mounts as one text, in Prometheus' format or in OpenMetrics'. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from commitlogfs.exporter.figures import MountFigures
from commitlogfs.mount.metrics.table import POOL, PREFIX


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(mounts: Sequence[MountFigures], now_s: float, accept: str = "") -> tuple[bytes, str]:
    """The text and its content type, as the header Accept asks. `now_s` is monotonic."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*_own(mounts, now_s), *_merged(mounts)]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _own(mounts: Sequence[MountFigures], now_s: float) -> list[Metric]:
    up = GaugeMetricFamily(f"{PREFIX}up", "1 if the daemon of the mount answers", labels=(POOL,))
    age = GaugeMetricFamily(
        f"{PREFIX}figures_age_seconds", "Age of the mount's other metrics; absent before the first", labels=(POOL,)
    )
    for mount in mounts:
        up.add_metric((mount.found.name,), float(mount.is_up))
        age_s = mount.age_s(now_s)
        if age_s is not None:
            age.add_metric((mount.found.name,), age_s)
    return [up, age]


def _merged(mounts: Sequence[MountFigures]) -> list[Metric]:
    """Each metric once, with the samples of all mounts. A daemon of a former version leaves out the label POOL."""
    merged: dict[str, Metric] = {}
    for mount in mounts:
        for family in mount.families:
            into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += [
                sample._replace(labels={POOL: mount.found.name, **_printable(sample.labels)})
                for sample in family.samples
            ]
    return list(merged.values())


def _printable(labels: Mapping[str, str]) -> dict[str, str]:
    """As UTF-8 can carry them: a path may have bytes that are not."""
    return {key: value.encode(errors="backslashreplace").decode() for key, value in labels.items()}
