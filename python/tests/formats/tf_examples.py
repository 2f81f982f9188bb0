"""TFRecord files of tests: tf.train.Example as protobuf writes it, by the schema of TensorFlow's example.proto and
feature.proto."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from stocached._common.checksum import crc32c


def _classes() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tests/example.proto", package="tensorflow", syntax="proto3")

    def message(parent: Any, name: str, **fields: Any) -> Any:
        """fields: each the type, a name for messages, and whether it is repeated."""
        made = parent.add(name=name)
        for number, (field, (kind, repeated)) in enumerate(fields.items(), 1):
            field = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                field.type = kind
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, kind
        return made

    def mapping(parent: Any, name: str, field: str, kind: str) -> None:
        outer = message(parent, name, **{field: (f".tensorflow.{name}.Entry", True)})
        entry = message(outer.nested_type, "Entry", key=(9, False), value=(kind, False))
        entry.options.map_entry = True
        entry.name = f"{field.title().replace('_', '')}Entry"
        outer.field[0].type_name = f".tensorflow.{name}.{entry.name}"

    top = file.message_type
    message(top, "BytesList", value=(12, True))
    message(top, "FloatList", value=(2, True))
    message(top, "Int64List", value=(3, True))
    kinds = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
    feature = message(top, "Feature", **{name: (f".tensorflow.{kind}", False) for name, kind in kinds.items()})
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    mapping(top, "Features", "feature", ".tensorflow.Feature")
    message(top, "FeatureList", feature=(".tensorflow.Feature", True))
    mapping(top, "FeatureLists", "feature_list", ".tensorflow.FeatureList")
    message(top, "Example", features=(".tensorflow.Features", False))
    message(
        top,
        "SequenceExample",
        context=(".tensorflow.Features", False),
        feature_lists=(".tensorflow.FeatureLists", False),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in ("Example", "SequenceExample")
    )


Example, SequenceExample = _classes()


def written(path: Path, *data: bytes) -> Path:
    """A file of any records. test_records.py compares its checksums with those of another program."""
    with open(path, "wb") as file:
        for each in data:
            head = struct.pack("<Q", len(each))
            file.write(head + _masked(head) + each + _masked(each))
    return path


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def example_of(**features: tuple[str, list[Any]]) -> bytes:
    """features: each the kind and the values."""
    made = Example()
    for name, (kind, values) in features.items():
        getattr(made.features.feature[name], f"{kind}_list").value.extend(values)
    return bytes(made.SerializeToString())


def item_of(data: bytes) -> dict[str, Any]:
    """What protobuf reads, as the item of a pipe."""
    features = Example.FromString(data).features.feature
    return {name: _value(features[name]) for name in features}


def _value(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values: Any = list(getattr(feature, kind).value)
    if kind != "bytes_list":
        values = np.array(values, {"int64_list": "i8", "float_list": "f4"}[kind])
    return values[0] if len(values) == 1 else values
