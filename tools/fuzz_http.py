"""Schemathesis against the REST proxy of a fresh broker: reads /openapi.json and makes requests from it.

    python tools/fuzz_http.py [EXAMPLES] [SEED]

Every check of Schemathesis but two counts: no 5xx, answers as described, bad requests refused, right methods. Left out:
positive_data_acceptance wants every request that fits the schema to be accepted, and a schema does not say that an
offset exists, that text is base64, or that 1.0 is not an integer here; use_after_free wants 404 for the subscription
of a consumer that has unsubscribed, which is an empty list in Confluent's API. The tail of a topic is left out too: it
is a stream without an end, and the fuzzer waits for one. Exit code 0: nothing found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

CHECKS_LEFT_OUT = "positive_data_acceptance,use_after_free"
ENDLESS = "tailTopic"
REQUEST_TIMEOUT_S = "70"  # longer than the longest long poll


def main(arguments: list[str]) -> int:
    examples = arguments[0] if arguments else "50"
    seed = arguments[1] if len(arguments) > 1 else "1"
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as data:
        command = [sys.executable, "-m", "penstock.cli", "start", "--port", "0", "--data", data]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            listening = re.search(r"HTTP on (\S+:\d+)", ready)
            if listening is None:
                sys.exit(f"the broker did not start (it said {ready!r})")
            return subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", "run", f"http://{listening[1]}/openapi.json"),
                    *("--checks", "all", "--exclude-checks", CHECKS_LEFT_OUT, "--suppress-health-check", "all"),
                    *("--exclude-operation-id", ENDLESS),
                    *("--max-examples", examples, "--seed", seed, "--request-timeout", REQUEST_TIMEOUT_S),
                ],
                check=False,
            ).returncode
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
