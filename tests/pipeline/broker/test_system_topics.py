"""The broker's own topics, by version, are those of RocketMQ's TopicValidator."""

import shutil
import subprocess
from pathlib import Path

import pytest

from commitlogfs.bench import rocketmq
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS_SINCE, SYSTEM_PREFIX, SYSTEM_TOPICS_SINCE

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

OLDER = [version for version in rocketmq.STORE_VERSIONS if version != "5.5.0"]
PRINT_TOPICS = """
import org.apache.rocketmq.common.topic.TopicValidator;

public class PrintTopics {
    public static void main(String[] arguments) {
        System.out.println(TopicValidator.SYSTEM_TOPIC_PREFIX);
        TopicValidator.getSystemTopicSet().forEach(System.out::println);
    }
}
"""


@pytest.mark.parametrize("version", ["5.5.0", *(pytest.param(older, marks=pytest.mark.full) for older in OLDER)])
def test_the_list_is_that_of_the_version(version: str, tmp_path: Path) -> None:
    program = tmp_path / "PrintTopics.java"
    program.write_text(PRINT_TOPICS)
    command = ["java", "-cp", rocketmq.fetch(version).class_path, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    prefix, *topics = ran.stdout.split()
    number = tuple(map(int, version.split(".")))
    listed = {
        topic.decode() for topic, since in (HALF_TOPICS_SINCE | SYSTEM_TOPICS_SINCE).items() if since <= number
    }
    assert (prefix, set(topics)) == (SYSTEM_PREFIX.decode(), listed)
