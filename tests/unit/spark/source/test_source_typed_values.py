"""Values with a schema: the columns, what becomes of values that do not fit, and what each mistake is told."""

from __future__ import annotations

import json
import pickle
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values.prefix import NotThere
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options.known import InvalidOption
from penstock.spark.source import schema_registry
from penstock.spark.source.columns import arrow_schema, check_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.typed_values import BadValue, TypedRows
from penstock.spark.source.value_options import ValueOptions

SCHEMA = (
    "id long not null, user struct<country: string, age: int not null>, tags array<string>, "
    "prices map<string, decimal(5, 2)>, at timestamp, day date, ratio float, is_new boolean, raw binary, n byte"
)
VALUES = [b'{"id": 1, "user": {"age": 7}, "prices": {"x": 1.5}}', b"no json", None, b'{"id": "2"}', b'{"id": 3}']


def records(columns: Any, values: list[bytes | None]) -> Any:
    count = len(values)
    made = {"topic": ["t"] * count, "partition": [3] * count, "offset": range(40, 40 + count), "value": values}
    arrays = [pa.array(made.get(field.name, [None] * count), field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def rows_of(options: ValueOptions, names: list[str] | None = None, values: list[bytes | None] = VALUES) -> Any:
    schema = arrow_schema(source_schema(True, options))
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    typed = TypedRows(options, schema)
    (rows,) = typed.rows(iter([records(typed.columns, values)]))
    rows.validate(full=True)
    assert rows.schema == schema
    return rows


def test_a_row_that_does_not_fit_keeps_its_reason_and_bytes() -> None:
    rows = rows_of(ValueOptions(SCHEMA)).to_pylist()
    assert [row["offset"] for row in rows] == [40, 41, 42, 43, 44]
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, None, 3]
    assert rows[0]["value"]["user"] == {"country": None, "age": 7}
    assert [row["badValue"] for row in rows] == [None, b"no json", None, b'{"id": "2"}', None]
    reasons = [row["valueError"] for row in rows]
    assert reasons[1].startswith("JSON is malformed")
    assert reasons[3] == "Expected `int`, got `str` - at `$.id`"
    assert reasons[0] is reasons[2] is reasons[4] is None  # a tombstone is no bad value


def test_bad_values_may_be_dropped() -> None:
    rows = rows_of(ValueOptions(SCHEMA, "drop")).to_pylist()
    assert [(row["offset"], row["valueError"]) for row in rows] == [(40, None), (42, None), (44, None)]
    assert rows_of(ValueOptions(SCHEMA, "drop"), ["offset"]).column("offset").to_pylist() == [40, 42, 44]
    assert rows_of(ValueOptions(SCHEMA, "drop"), values=[b"x"]).num_rows == 0


@pytest.mark.parametrize("names", [None, ["key"], ["valueError", "offset"]])
def test_a_bad_value_may_be_an_error(names: list[str] | None) -> None:
    with pytest.raises(
        BadValue, match=r"the value at offset 41 of partition 3 of 't' does not fit the option 'valueSchema': JSON is"
    ):
        rows_of(ValueOptions(SCHEMA, "fail"), names)
    assert rows_of(ValueOptions(SCHEMA, "fail"), names, [b'{"id": 1}', None]).num_rows == 2


def test_only_columns_that_are_asked_for_are_made() -> None:
    schema = arrow_schema(source_schema(False, ValueOptions(SCHEMA)))
    plain = TypedRows(ValueOptions(SCHEMA), pa.schema([schema.field("offset"), schema.field("key")]))
    assert (plain.columns.names, plain.is_decoding) == (["offset", "key"], False)
    errors = TypedRows(ValueOptions(SCHEMA), pa.schema([schema.field("valueError")]))
    assert errors.columns == pa.schema([KAFKA_SCHEMA.field("value")])
    assert rows_of(ValueOptions("id long"), ["badValue"]).column(0).to_pylist() == [
        None,
        b"no json",
        None,
        b'{"id": "2"}',
        None,
    ]


def test_nothing_to_decode() -> None:
    assert rows_of(ValueOptions(SCHEMA), values=[]).num_rows == 0
    assert rows_of(ValueOptions(SCHEMA), values=[None]).to_pylist()[0]["value"] is None


def test_columns_that_spark_sees() -> None:
    source = PenstockDataSource({"valueformat": "JSON", "valueSchema": "id int not null, at timestamp"})
    assert source.schema().simpleString() == (
        "struct<key:binary,value:struct<id:int,at:timestamp>,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,valueError:string,badValue:binary>"
    )
    headers = source_schema(True, ValueOptions("id int"))
    assert headers.names[-3:] == ["headers", "valueError", "badValue"]
    assert PenstockDataSource({"valueFormat": "binary"}).schema() == source_schema(False)


def test_a_user_s_schema() -> None:
    values = ValueOptions("id int not null")
    struct = StructType([StructField("id", IntegerType())])
    chosen = StructType([StructField("value", struct), StructField("offset", LongType())])
    assert check_schema(chosen, values) is chosen
    with pytest.raises(InvalidOption, match=r"'value' as struct<id:int>.* as struct<id:bigint>: the type follows from"):
        check_schema(chosen, ValueOptions("id long"))
    with pytest.raises(InvalidOption, match=r"'value' as struct<id:int>.* as binary: the type follows from"):
        check_schema(chosen)
    with pytest.raises(InvalidOption, match=r"has only key, .* \(with the option valueFormat also valueError and badV"):
        check_schema(StructType([StructField("badValue", LongType())]))


def test_avro_as_columns(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    (tmp_path / "r.avsc").write_text(text)
    for schema in (text, str(tmp_path / "r.avsc"), (tmp_path / "r.avsc").as_uri()):
        given = {"subscribe": "t", "valueFormat": "avro", "valueSchema": schema}
        options = SourceOptions.for_batch(given).values
        assert options == ValueOptions(text, kind="avro")
        assert PenstockDataSource(given).schema()["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    assert options is not None
    rows = rows_of(options, values=[b"\x02\x02\x02x", b"\x02\x01", None]).to_pylist()
    assert [row["value"] for row in rows] == [{"id": 1, "name": "x"}, None, None]
    assert [row["badValue"] for row in rows] == [None, b"\x02\x01", None]
    assert rows[1]["valueError"].startswith("Avro is malformed: ")
    assert pickle.loads(pickle.dumps(options)) == options


def test_protobuf_as_columns(tmp_path: Path) -> None:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Click").field.add(name="id", number=1, type=3, label=1)
    described = tmp_path / "a.desc"
    described.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    given = {"subscribe": "t", "valueFormat": "protobuf", "valueSchema": str(described), "valueMessage": "shop.Click"}
    assert PenstockDataSource(given).schema()["value"].dataType.simpleString() == "struct<id:bigint>"
    options = SourceOptions.for_batch(given).values
    assert options is not None
    described.unlink()  # workers have no such file
    rows = rows_of(pickle.loads(pickle.dumps(options)), values=[b"\x08\x07", b"\x08", b"", None]).to_pylist()
    assert [row["value"] for row in rows] == [{"id": 7}, None, {"id": 0}, None]
    assert [row["badValue"] for row in rows] == [None, b"\x08", None, None]
    described.write_bytes(options.descriptors)
    with pytest.raises(InvalidOption, match="option 'valueSchema': it has no message 'Clock'; messages in it: "):
        SourceOptions.for_batch(given | {"valueMessage": "Clock"})


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [("avro", "fastavro", "avro"), ("protobuf", "google", "protobuf")]
)
def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, kind: str, module: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"penstock.arrow.values.{kind}_values", raising=False)
    monkeypatch.setattr("builtins.__import__", _without(module))
    with pytest.raises(InvalidOption, match=rf"run pip install 'penstock\[{extra}\]'"):
        ValueOptions("{}", kind=kind).decoder()


def _without(module: str) -> Any:
    real = __import__

    def imported(name: str, *more: Any, **options: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, *more, **options)

    return imported


def test_writer_schemas_come_from_the_registry() -> None:
    pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    known = {5: {"schema": json.dumps(schema)}, 6: {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}}
    asked: list[tuple[str, str | None]] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            found = known.get(int(self.path.rpartition("/")[2]))
            body = json.dumps(found or {"error_code": 40403, "message": "Schema not found"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://me:s%20cret@127.0.0.1:{server.server_port}/"
        given = {"subscribe": "t", "valueFormat": "avro", "schemaRegistry": url, "valueSchemaId": "5"}
        try:
            options = SourceOptions.for_batch(given).values
            assert options is not None
            values = [b"\0\0\0\0\5\x02", b"\0\0\0\0\6\x02", b"\0\0\0\0\7\x02", b"\x02"]
            rows = rows_of(options, values=[*values, *values]).to_pylist()
            with pytest.raises(
                InvalidOption, match="option 'valueSchemaId' is 9: it is not in the registry http://127"
            ):
                SourceOptions.for_batch(given | {"valueSchemaId": "9"})
        finally:
            server.shutdown()
            thread.join()
    assert [row["value"] for row in rows] == [{"id": 1}, None, None, None] * 2
    assert [row["valueError"] and row["valueError"].partition(" http")[0] for row in rows[:4]] == [
        None,
        "its schema 6: it is of type PROTOBUF in the registry",
        "its schema 7: it is not in the registry",
        "it does not begin with byte 0 and the number of a schema",
    ]
    paths = [path for path, _ in asked]
    assert paths.count("/schemas/ids/5") == paths.count("/schemas/ids/7") == 1
    assert {credentials for _, credentials in asked} == {"Basic bWU6cyBjcmV0"}


def test_a_registry_that_does_not_answer_is_no_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastavro")
    monkeypatch.setattr(schema_registry, "PAUSE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    text = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    with pytest.raises(schema_registry.RegistryUnavailable, match=r"does not give schema 5: .*refused"):
        rows_of(ValueOptions(text, kind="avro", registry=url), values=[b"\0\0\0\0\5\x02"])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://u:secret@host",
        "u:secret@host:8081",
        "https://u:secret/ss@host",
        "https://u:secret?ss@host",
        "https://u:1#secret@host",
        "https://u:secret@host:port",
        "https://u:secret@host:99999",
        "https://u:secret@",
        "https://u:secret@[host",
        "https://u:secret@host/a b\x01",
    ],
)
def test_a_registry_that_is_no_url_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidOption, match=r"'schemaRegistry' is no URL, .* in a password") as caught:
        SourceOptions.for_batch({"subscribe": "t", "valueFormat": "avro", "valueSchema": "{}", "schemaRegistry": url})
    assert "secret" not in str(caught.value)


def test_what_a_registry_is_told_and_what_it_says() -> None:
    """Another host gets no password, odd statuses are bad values, and misses do not pile up."""
    asked: list[tuple[str, str | None]] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            number = int(self.path.rpartition("/")[2])
            self.send_response({1: 302, 2: 400, 3: 422}.get(number, 200 if "other" in self.path else 404))
            if number == 1:
                self.send_header("Location", f"http://localhost:{server.server_port}/other/9")
            body = b'{"schema": "x"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            registry = schema_registry.SchemaRegistry(f"HTTP://me:secret@127.0.0.1:{server.server_port}")
            assert registry.schema(1) == "x"
            assert asked == [("/schemas/ids/1", "Basic bWU6c2VjcmV0"), ("/other/9", None)]
            for number in (2, 3, 4, 2**31, 2**32 - 1):
                with pytest.raises(NotThere, match="it is not in the registry http"):
                    registry.schema(number)
            assert [path for path, _ in asked[2:]] == [f"/schemas/ids/{number}" for number in (2, 3, 4)]
            registry._missing = {number: asked_at - 60 for number, asked_at in registry._missing.items()}
            with pytest.raises(NotThere):
                registry.schema(5)
            assert list(registry._missing) == [5]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"valueFormat": "xml"}, "option 'valueFormat' is 'xml': write json, avro, protobuf or binary"),
        (
            {"valueFormat": "avro"},
            "option 'valueFormat' is avro: give a record schema with the option 'valueSchema', as J",
        ),
        (
            {"valueFormat": "avro", "valueSchema": "/no/such.avsc"},
            "the file /no/such.avsc cannot be read: No such file",
        ),
        (
            {"valueFormat": "avro", "valueSchema": '{"type": "int"}'},
            "option 'valueSchema': the Avro schema is no record",
        ),
        (
            {"valueFormat": "avro", "schemaRegistry": "r:8081"},
            "option 'schemaRegistry' is no URL, such as http://registry:8081",
        ),
        (
            {"valueFormat": "avro", "schemaRegistry": "http://localhost:1"},
            "or with 'valueSchemaId' the number of one in the registry",
        ),
        (
            {"valueFormat": "avro", "valueSchema": "{}", "valueSchemaId": "one"},
            "option 'valueSchemaId' is 'one': give the number of a schema",
        ),
        (
            {"valueFormat": "json", "valueSchema": "id long", "valueSchemaId": "1"},
            "option 'valueSchemaId' is for valueFormat=avro or protobuf: it is json",
        ),
        (
            {"valueFormat": "protobuf", "schemaRegistry": "http://localhost:1"},
            "option 'schemaRegistry' is for valueFormat=avro: it is protobuf",
        ),
        ({"valueFormat": "protobuf"}, "the path of a file that protoc --descriptor_set_out wrote"),
        (
            {"valueFormat": "protobuf", "valueSchema": "x"},
            "give with the option 'valueMessage' the full name of a mess",
        ),
        (
            {"valueFormat": "protobuf", "valueSchema": "/no/such", "valueMessage": "M"},
            "option 'valueSchema': the file /no/such cannot be read",
        ),
        ({"valueFormat": "json"}, "give the fields with the option 'valueSchema', such as 'id long, name string'"),
        ({"valueSchema": "id long"}, "option 'valueSchema' is for typed values: give the option 'valueFormat'"),
        ({"onBadValue": "drop"}, "option 'onBadValue' is for typed values: give the option 'valueFormat'"),
        (
            {"valueFormat": "json", "valueSchema": "id long", "onBadValue": "skip"},
            "option 'onBadValue' is 'skip': write null, fail or drop",
        ),
        (
            {"valueFormat": "json", "valueSchema": "id long, name strng"},
            r"option 'valueSchema': the schema has 'strng' where a type .* is expected \(character 15\)",
        ),
        (
            {"valueFormat": "json", "valueSchema": "m map<int, int>"},
            "option 'valueSchema': column 'm': names in JSON are strings",
        ),
        ({"valueFormat": "json", "valueShema": "id long"}, "did you mean 'valueSchema'"),
    ],
)
def test_mistakes(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        SourceOptions.for_batch({"subscribe": "t"} | options)
    if "valueShema" not in options:
        with pytest.raises(InvalidOption, match=reason):
            PenstockDataSource(options).schema().simpleString()
