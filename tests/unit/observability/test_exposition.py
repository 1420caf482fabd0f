from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock.observability.exposition import PIECE_LINES, HistogramSample, counter, gauge, histogram, render


def test_the_clients_parser_reads_what_was_written() -> None:
    nasty = 'a "quoted"\nname\\with everything, {even} this='
    samples = [((nasty, "0"), 12), (("b", "1"), 0.5)]
    page = "".join(
        [
            *render(gauge("size", "Bytes\nand \\ more.", ("topic", "partition"), samples)),
            *render(counter("seen_total", "All of them.", (), [((), 2**53)])),
            *render(gauge("nothing", "Has no samples.", ("x",), [])),
        ]
    )
    size, seen, nothing = text_string_to_metric_families(page)
    assert (size.name, size.type, size.documentation) == ("size", "gauge", "Bytes\nand \\ more.")
    assert [(sample.labels, sample.value) for sample in size.samples] == [
        ({"topic": nasty, "partition": "0"}, 12),
        ({"topic": "b", "partition": "1"}, 0.5),
    ]
    assert (seen.name, seen.type, seen.samples[0].value) == ("seen", "counter", 2**53)
    assert (nothing.name, nothing.samples) == ("nothing", [])


def test_buckets_of_a_histogram_are_cumulative() -> None:
    sample = HistogramSample(("Fetch",), (0.1, 1.0), [3, 0, 2], 7.25)
    (family,) = text_string_to_metric_families(
        "".join(render(histogram("took_seconds", "Time.", ("request",), [sample])))
    )
    assert family.type == "histogram"
    assert [(line.name, line.labels.get("le"), line.value) for line in family.samples] == [
        ("took_seconds_bucket", "0.1", 3),
        ("took_seconds_bucket", "1.0", 3),
        ("took_seconds_bucket", "+Inf", 5),
        ("took_seconds_sum", None, 7.25),
        ("took_seconds_count", None, 5),
    ]


def test_a_large_family_comes_in_pieces() -> None:
    samples = [((str(number),), float(number)) for number in range(1000)]
    pieces = list(render(gauge("many", "Many.", ("n",), samples)))
    assert max(piece.count("\n") for piece in pieces) <= PIECE_LINES + 1
    (family,) = text_string_to_metric_families("".join(pieces))
    assert [line.value for line in family.samples] == list(range(1000))
