"""The recipes of docs/pipeline.md for bodies in Avro and Protobuf, on compressed and plain bodies."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import SparkSession
from support.compressed import TYPES, compressed
from support.messages import message
from support.written_logs import write_log

TEXT = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
ORDERS = [(number, number + 0.5) for number in range(4)]
AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "total", "type": "double"}],
    }
)
MODULE = """
from google.protobuf import descriptor_pool, message_factory
file = descriptor_pool.Default().AddSerializedFile({serialized!r})
Order = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("shop.Order"))
"""
"""The part of a module made by protoc that the recipe uses."""
Field = descriptor_pb2.FieldDescriptorProto


def described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    order.field.add(name="total", number=2, type=Field.TYPE_DOUBLE, label=Field.LABEL_OPTIONAL)
    return file


def avro(number: int, total: float) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, {"id": number, "total": total})
    return out.getvalue()


def protobuf(number: int, total: float) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described())
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    data: bytes = order(id=number, total=total).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("function", "encode"), [("from_avro_body", avro), ("from_protobuf_body", protobuf)], ids=["avro", "protobuf"]
)
def test_a_recipe_gives_the_orders(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    encode: Callable[..., bytes],
) -> None:
    makers = [
        message(number, topic=b"orders", body=compressed(encode(*order), kind), sys_flag=kind)
        for number, (order, kind) in enumerate(zip(ORDERS, [0, *TYPES], strict=False))
    ]
    write_log(tmp_path / "log", 1 << 16, makers)
    (tmp_path / "orders_pb2.py").write_text(MODULE.format(serialized=described().SerializeToString()))
    spark.sparkContext.addPyFile(str(tmp_path / "orders_pb2.py"))
    monkeypatch.syspath_prepend(tmp_path)
    (recipe,) = (block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if function in block)
    names: dict[str, Any] = {"spark": spark}
    exec(recipe.replace("/var/rocketmq/store/commitlog", str(tmp_path / "log")), names)  # noqa: S102 - our document
    assert [tuple(row) for row in names["orders"].sort("id").collect()] == ORDERS
