"""The SQL of docs/pipeline.md does what it says, on compressed JSON."""

import re
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from support.compressed import TYPES, compressed
from support.messages import message
from support.written_logs import write_log

TEXT = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
SEGMENT = 1 << 16


@pytest.fixture
def statements(tmp_path: Path) -> list[str]:
    """Those of the document, for a log of five orders and a text that is none."""
    bodies = [
        b'{"id": %d, "total": %d.5, "items": [{"name": "thing %d"}]}' % (number % 2, number, number)
        for number in range(5)
    ]
    kinds = [0, *TYPES]
    makers = [
        message(number, topic=b"orders", body=compressed(body, kind), sys_flag=kind)
        for number, (body, kind) in enumerate(zip(bodies, kinds, strict=True))
    ]
    write_log(tmp_path / "log", SEGMENT, [*makers, message(6, topic=b"others"), message(7, topic=b"orders")])
    blocks = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    sql = "".join(blocks).replace("/var/rocketmq/store/commitlog", str(tmp_path / "log"))
    return [statement.strip() for statement in sql.split(";") if statement.strip()]


def test_json_by_a_schema_and_as_variant(spark: SparkSession, statements: list[str]) -> None:
    view, by_schema, by_path = statements
    spark.sql(view)
    assert [tuple(row) for row in spark.sql(by_schema).collect()] == [(None, None), (0, 7.5), (1, 5.0)]
    rows = spark.sql(by_path).collect()
    assert rows[0] == Row(id=None, first_item=None)
    assert sorted((row.id, row.first_item) for row in rows[1:]) == [
        *((0, f"thing {number}") for number in (0, 2, 4)),
        *((1, f"thing {number}") for number in (1, 3)),
    ]
