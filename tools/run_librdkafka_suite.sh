#!/bin/sh
# run_librdkafka_suite.sh SUITE [TEST...]
#
# librdkafka's own test suite against a fresh broker. SUITE is the folder that holds the suite's
# run.sh (called as `run.sh HOST:PORT quick [TEST...]`) or that script itself; TEST are four-digit
# numbers and pick some. The suite is not part of this repository: it fetches librdkafka's tests
# with npm and builds them with a C and C++ compiler, make, OpenSSL and zlib headers in $LAB
# (default build/librdkafka).
#
# env: PENSTOCK_PYTHON  the Python that has penstock and confluent-kafka (default .venv/bin/python)
#      LAB, JOBS, LIMIT, RETRY, KAFKA_LIBS  handed on to the suite
set -eu

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "run_librdkafka_suite: $1" >&2; exit 2; }

[ $# -ge 1 ] && [ -n "$1" ] || usage
SUITE=$1; shift
[ -d "$SUITE" ] && SUITE=$SUITE/run.sh
[ -f "$SUITE" ] || fail "no run.sh at $SUITE"
SUITE=$(cd "$(dirname "$SUITE")" && pwd)/$(basename "$SUITE")

ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PENSTOCK_PYTHON:-$ROOT/.venv/bin/python}
case $PYTHON in /*) ;; */*) PYTHON=$PWD/$PYTHON ;; esac  # the suite calls it from another folder
"$PYTHON" -c 'import penstock.cli, confluent_kafka' 2>/dev/null || fail "$PYTHON lacks penstock or confluent-kafka: make install"
LAB=${LAB:-$ROOT/build/librdkafka}
mkdir -p "$LAB"
if [ ! -x "$LAB/librdkafka/tests/test-runner" ]; then
  for tool in npm cc c++ make; do
    command -v "$tool" >/dev/null || fail "$tool is missing: the suite needs npm, a C and C++ compiler and make to build librdkafka's tests"
  done
fi

# What the suite's tests expect of a broker; every other setting is the default.
WORK=$(mktemp -d)
: >"$WORK/ready"
"$PYTHON" -m penstock.cli start --port 0 --data "$WORK/data" --log-level warning \
  --set num.partitions=4 \
  --set group.initial.rebalance.delay.ms=0 \
  --set offsets.topic.replication.factor=1 \
  --set transaction.state.log.replication.factor=1 \
  --set transaction.state.log.min.isr=1 \
  >"$WORK/ready" 2>"$LAB/broker.log" &
BROKER=$!
stop() {
  kill "$BROKER" 2>/dev/null || true
  wait "$BROKER" || echo "run_librdkafka_suite: the broker ended with $?: see $LAB/broker.log" >&2
  rm -rf "$WORK"
}
trap stop EXIT
trap 'exit 130' INT TERM

tries=0
until grep -q 'ready on' "$WORK/ready"; do
  kill -0 "$BROKER" 2>/dev/null || { cat "$LAB/broker.log" >&2; fail "the broker did not start"; }
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] || fail "the broker was not ready after 30 s"
  sleep 0.1
done
ADDRESS=$(sed -n 's/.*ready on \([^ ,]*\)[:,] .*/\1/p' "$WORK/ready")

echo "# broker on $ADDRESS, log in $LAB/broker.log" >&2
code=0
LAB=$LAB KB_PYTHON=$PYTHON sh "$SUITE" "$ADDRESS" quick "$@" || code=$?
# The names of what did not pass, in one line, from the report the suite leaves.
"$PYTHON" - "$LAB" <<'END'
import glob, json, os, sys
reports = sorted(glob.glob(os.path.join(sys.argv[1], "rdk-out", "*", "results.json")), key=os.path.getmtime)
if reports:
    tests = json.load(open(reports[-1]))["tests"]
    rest = sorted(name for name, result in tests.items() if result["state"] != "PASS")
    print(f"{len(tests) - len(rest)} of {len(tests)} pass; the rest: {', '.join(rest) or 'none'}")
END
exit "$code"
