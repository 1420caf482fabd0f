"""The template `joins`: a join of two topics as streams, within a bound of time."""

from __future__ import annotations

from penstock.spark.pipeline.templates.project_files import IGNORED, READING, Template, specification

_SETTINGS = """\
  # A payment counts if it comes this long after its order.
  penstock.paid.within: "1 hour"
  # How much later than newer ones an order or a payment may come.
  penstock.late.by: "10 minutes"
"""

_PAYMENTS = (
    '''\
"""Joins orders with their payments: one row for each payment in time, and one for each order without any.

An order is JSON: {"order_id": "o-1", "customer": "ada", "amount": 25.0, "ts": "2026-03-01T12:00:00Z"},
a payment is JSON: {"order_id": "o-1", "amount": 25.0, "ts": "2026-03-01T12:20:00Z"}.

A pair is written when both are there. An order without a payment is written when its time is over in both topics, by
records that one run reads: the next run is a new query, which remembers no topic's watermark alone. So while one of
the topics stands still, such orders wait. Spark keeps orders and payments only as long as they can find each other.
One wrong `ts` far in the future would leave out all that come after it, so a record whose `ts` is a day later than its
own time is a bad one.
"""

'''
    + READING
    + '''

ORDERS, PAYMENTS = spark.conf.get("penstock.source.topics").split(",")
WITHIN = spark.conf.get("penstock.paid.within")
LATE_BY = spark.conf.get("penstock.late.by")
REASON = """
    CASE WHEN it IS NULL OR it.unreadable IS NOT NULL THEN 'the value is not JSON of an order or a payment'
         WHEN coalesce(it.order_id, '') = '' THEN 'order_id is missing'
         WHEN try_to_timestamp(it.ts) IS NULL THEN 'ts is missing or not a time'
         WHEN try_to_timestamp(it.ts) > sent_at + INTERVAL 1 DAY THEN 'ts is in the future'
    END
"""
FIELDS = "order_id STRING, customer STRING, amount DOUBLE, ts STRING"


def orders() -> DataFrame:
    return (
        parsed(ORDERS, FIELDS)
        .where(f"{REASON} IS NULL")
        .selectExpr("it.order_id", "it.customer", "it.amount", "try_to_timestamp(it.ts) AS ordered_at")
        .withWatermark("ordered_at", LATE_BY)
    )


def payments() -> DataFrame:
    return (
        parsed(PAYMENTS, FIELDS)
        .where(f"{REASON} IS NULL")
        .selectExpr("it.order_id AS paid_order", "it.amount AS paid", "try_to_timestamp(it.ts) AS paid_at")
        .withWatermark("paid_at", LATE_BY)
    )


@dp.table(comment="Orders with their payments; no payment: null")
def order_payments() -> DataFrame:
    in_time = f"paid_order = order_id AND paid_at >= ordered_at AND paid_at <= ordered_at + INTERVAL {WITHIN}"
    return (
        orders()
        .join(payments(), F.expr(in_time), "leftOuter")  # "inner": without orders that nobody has paid
        .select("order_id", "customer", "amount", "ordered_at", "paid", "paid_at")
    )


@dp.table(comment="Records that are neither orders nor payments, with the reason")
def bad_orders() -> DataFrame:
    rows = parsed(f"{ORDERS},{PAYMENTS}", FIELDS).where(f"{REASON} IS NOT NULL")
    return rows.selectExpr(f"{REASON} AS reason", "value", "topic", "partition", "offset")
'''
)

_TEST = '''\
"""The pipeline on a few orders, with a broker and tables of each test: `pytest` in the project's directory."""

from pathlib import Path

PROJECT = Path(__file__).parents[1]
FUTURE = {"order_id": "o-1", "amount": 25.0, "ts": "2999-01-01T00:00:00Z"}


def order(number, time):
    return {"order_id": number, "customer": "ada", "amount": 25.0, "ts": f"2026-03-01T{time}:00Z"}


def payment(number, time):
    return {"order_id": number, "amount": 25.0, "ts": f"2026-03-01T{time}:00Z"}


def pairs(pipeline):
    rows = pipeline.table("order_payments")
    return sorted((row["order_id"], row["paid_at"] and f"{row['paid_at']:%H:%M}") for row in rows)


def test_orders_find_their_payments_in_time(penstock_pipeline):
    pipeline = penstock_pipeline(PROJECT)
    pipeline.produce("$first_topic", [order("o-1", "12:00"), order("o-2", "12:05"), order("o-3", "12:10"), b"no JSON"])
    pipeline.produce("$last_topic", [payment("o-1", "12:20"), payment("o-1", "12:40"), {"order_id": "o-1"}, FUTURE])
    pipeline.run()
    paid = [("o-1", "12:20"), ("o-1", "12:40")]
    assert pairs(pipeline) == paid, "the others may still be paid"
    assert sorted(row["reason"] for row in pipeline.table("bad_orders")) == [
        "the value is not JSON of an order or a payment",
        "ts is in the future",
        "ts is missing or not a time",
    ]

    # The payment of o-2 comes too late, but orders have not passed its hour: nobody knows whether there is another.
    pipeline.produce("$last_topic", [payment("o-3", "12:50"), payment("o-2", "13:30"), payment("o-9", "15:30")])
    pipeline.run()
    assert pairs(pipeline) == [*paid, ("o-3", "12:50")]
    pipeline.produce("$first_topic", [order("o-9", "15:00")])
    pipeline.produce("$last_topic", [payment("o-8", "15:31")])
    pipeline.run()
    assert pairs(pipeline) == [*paid, ("o-2", None), ("o-3", "12:50"), ("o-9", "15:30")]
'''

_ORDERS = """\
{"order_id": "o-1", "customer": "ada", "amount": 25.0, "ts": "2026-03-01T12:00:00Z"}
{"order_id": "o-2", "customer": "grace", "amount": 40.0, "ts": "2026-03-01T12:05:00Z"}
{"order_id": "o-3", "customer": "linus", "amount": 12.5, "ts": "2026-03-01T12:10:00Z"}
{"order_id": "", "customer": "linus", "amount": 12.5, "ts": "2026-03-01T12:11:00Z"}
{"order_id": "o-4", "customer": "ada", "amount": 99.0, "ts": "2026-03-01T15:00:00Z"}
"""

_PAID = """\
{"order_id": "o-1", "amount": 25.0, "ts": "2026-03-01T12:20:00Z"}
{"order_id": "o-2", "amount": 40.0, "ts": "2026-03-01T13:30:00Z"}
{"order_id": "o-4", "amount": 99.0, "ts": "2026-03-01T15:01:00Z"}
"""

_README = """\
# $name

A pipeline on Spark that joins orders with their payments, over topics of a Penstock (or any Kafka) cluster at $servers:

    $first_topic, $last_topic
    |->  order_payments (table)    a row for each payment in time, and one for each order without any
    `->  bad_orders (table)        records that are neither, with the reason

Try it. First create the topics and send some records:

    export PENSTOCK_BOOTSTRAP_SERVERS=$servers
    penstock topics create --name $first_topic
    penstock topics create --name $last_topic
    penstock produce --topic $first_topic orders.jsonl
    penstock produce --topic $last_topic payments.jsonl

    penstock pipeline run
    penstock pipeline show order_payments

o-1 and o-4 are paid. o-2 is paid too late and o-3 never: their `paid_at` is null. `penstock.paid.within` in
`spark-pipeline.yml` is the time for a payment, `penstock.late.by` how much later than newer ones a record may come.

An order without a payment is written when one run reads records from both topics that are later than its time by
`penstock.late.by`. While one topic stands still, such orders wait. A record whose `ts` is more than a day later than
its own time goes to `bad_orders`: else it would leave out all that come after it.

`penstock pipeline serve` keeps running, `penstock pipeline history` shows the last runs, and `pytest` runs the tests
without a cluster (`pip install pytest`).

`transformations/` has the definitions: change them, add files. `spark-pipeline.yml` has the settings.
"""

JOINS = Template(
    ("orders", "payments"),
    {
        "spark-pipeline.yml": specification(_SETTINGS),
        "transformations/payments.py": _PAYMENTS,
        "tests/test_$module.py": _TEST,
        "orders.jsonl": _ORDERS,
        "payments.jsonl": _PAID,
        "README.md": _README,
        ".gitignore": IGNORED,
    },
    roles=("orders", "payments"),
)
