"""When disks are checked, and what silence and failed reads prove: without disks and clocks."""

import pytest

from commitlogfs.store.checks.check import DiskCheck, Stage
from commitlogfs.store.checks.check_policy import (
    CHECKS_TO_CHANGE,
    SILENT_OBSERVATIONS,
    SILENT_OBSERVATIONS_WITHOUT_COUNTERS,
    CheckPolicy,
)
from commitlogfs.store.slowness.load import EndedRequests

NOTHING_READ = DiskCheck(read=0, failed=3, read_errno=5, write_errno=0)
ALL_READ = DiskCheck(read=3, failed=0, read_errno=0, write_errno=0)
SOME_READ = DiskCheck(read=2, failed=1, read_errno=5, write_errno=0)
EMPTY = DiskCheck(read=0, failed=0, read_errno=0, write_errno=0)
AT_REST = EndedRequests(100, 100)


def due(policy: CheckPolicy, reads: int, writes: int, *, is_suspected: bool = False) -> bool:
    return policy.is_due(EndedRequests(reads, writes), is_suspected=is_suspected)


def test_a_disk_at_rest_is_checked_every_time():
    policy = CheckPolicy()
    assert [due(policy, 10, 10) for _ in range(3)] == [True] * 3


def test_a_busy_disk_is_checked_every_second_time():
    policy = CheckPolicy()
    assert [due(policy, count, count) for count in range(6)] == [True, False, True, False, True, False]


@pytest.mark.parametrize(("reads", "writes"), [(1, 0), (0, 1)])
def test_reads_or_writes_alone_prove_nothing(reads, writes):
    policy = CheckPolicy()
    assert all(due(policy, count * reads, count * writes) for count in range(4))


def test_a_suspected_disk_is_checked_however_busy():
    policy = CheckPolicy()
    assert all(due(policy, count, count, is_suspected=True) for count in range(4))


def test_an_unreadable_disk_is_checked_however_busy():
    policy = CheckPolicy(is_unreadable=True)
    assert all(due(policy, count, count) for count in range(4))


def test_a_device_without_counters_is_checked_every_time():
    policy = CheckPolicy()
    assert all(policy.is_due(None, is_suspected=False) for _ in range(3))


@pytest.mark.parametrize("stage", list(Stage))
def test_silence_is_proven_by_observations_in_a_row(stage):
    policy = CheckPolicy()
    policy.begin(AT_REST)
    observed = [policy.observe(stage, AT_REST, is_blocked=True) for _ in range(SILENT_OBSERVATIONS + 1)]
    assert observed == [False] * (SILENT_OBSERVATIONS - 1) + [True, True]


@pytest.mark.parametrize("stage", list(Stage))
def test_a_check_beside_writes_of_others_is_only_late(stage):
    policy = CheckPolicy()
    policy.begin(EndedRequests(0, 0))
    assert not any(policy.observe(stage, EndedRequests(0, count), is_blocked=True) for count in range(1, 1000))


def test_reads_of_others_excuse_a_check_that_reads():
    policy = CheckPolicy()
    policy.begin(EndedRequests(0, 0))
    assert not any(policy.observe(Stage.READING, EndedRequests(n, 0), is_blocked=True) for n in range(1, 100))


def test_reads_of_others_do_not_excuse_a_check_that_writes():
    policy = CheckPolicy()
    policy.begin(EndedRequests(0, 0))
    assert any(policy.observe(Stage.WRITING, EndedRequests(n, 0), is_blocked=True) for n in range(1, 100))


def test_a_check_that_gets_no_processor_proves_nothing():
    policy = CheckPolicy()
    policy.begin(AT_REST)
    assert not any(policy.observe(Stage.READING, AT_REST, is_blocked=False) for _ in range(1000))


def test_one_ended_request_begins_the_silence_anew():
    policy = CheckPolicy()
    policy.begin(AT_REST)
    for _ in range(SILENT_OBSERVATIONS - 1):
        policy.observe(Stage.WRITING, AT_REST, is_blocked=True)
    later = EndedRequests(100, 101)
    observed = [policy.observe(Stage.WRITING, later, is_blocked=True) for _ in range(SILENT_OBSERVATIONS + 1)]
    assert observed == [False] * SILENT_OBSERVATIONS + [True]


def test_the_next_check_begins_with_no_silence():
    policy = CheckPolicy()
    for _ in range(2):
        policy.begin(AT_REST)
        observed = [policy.observe(Stage.WRITING, AT_REST, is_blocked=True) for _ in range(SILENT_OBSERVATIONS)]
        assert observed.index(True) == SILENT_OBSERVATIONS - 1


def test_silence_of_a_device_without_counters_takes_longer():
    policy = CheckPolicy()
    policy.begin(None)
    observed = [
        policy.observe(Stage.READING, None, is_blocked=True) for _ in range(SILENT_OBSERVATIONS_WITHOUT_COUNTERS)
    ]
    assert observed.index(True) == SILENT_OBSERVATIONS_WITHOUT_COUNTERS - 1


def test_a_disk_is_unreadable_after_two_checks_that_read_nothing():
    policy = CheckPolicy()
    assert [policy.record_reads(NOTHING_READ) for _ in range(CHECKS_TO_CHANGE)] == [False, True]
    assert policy.is_unreadable
    assert [policy.record_reads(ALL_READ) for _ in range(CHECKS_TO_CHANGE)] == [False, True]
    assert not policy.is_unreadable


@pytest.mark.parametrize("other", [SOME_READ, ALL_READ, EMPTY])
def test_bad_blocks_do_not_make_a_disk_unreadable(other):
    policy = CheckPolicy()
    for _ in range(5):
        assert not policy.record_reads(NOTHING_READ)
        assert policy.is_confirming
        assert not policy.record_reads(other)
        assert not policy.is_confirming


@pytest.mark.parametrize("other", [SOME_READ, NOTHING_READ, EMPTY])
def test_a_disk_that_reads_now_and_then_stays_unreadable(other):
    policy = CheckPolicy(is_unreadable=True)
    for _ in range(5):
        assert not policy.record_reads(ALL_READ)
        assert not policy.record_reads(other)
    assert policy.is_unreadable
