"""`make demo`: an end-to-end demonstration in about two minutes, which cleans up after itself.

It has three brokers, a Python client that sends clicks at a steady rate, and a pipeline project on Spark. The pipeline
reads the clicks from a topic, sends bad ones to a dead-letter topic, keeps a table and a view, and writes
results to another topic. Half way a broker that leads partitions of clicks is killed with SIGKILL: other brokers take
over, and clicks and pipeline go on. It comes back later and catches up. At the end the table is compared with the sent
clicks, row by row, and the topic of results becomes a table that Polars reads. Any difference is an error with exit
code 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from demo.brokers import COUNT, PENSTOCK, Broker, Cluster
from demo.clickstream import Clickstream
from demo.project import Project, is_idle, is_reading, lag_of
from demo.results import check_dead_letters, check_results, check_table, show_followed, show_view
from demo.telling import Failed, say, show
from penstock.spark.session.java import JavaNotFound, find_java

CLICKS, CLEAN, DEAD = "clicks", "clicks-clean", "clicks-dead-letters"
SCHEMA = "user string, page string, ts timestamp, ms long"
PARTITIONS = 3
RATE = int(os.environ.get("PENSTOCK_DEMO_RATE", "2000"))
SECONDS = float(os.environ.get("PENSTOCK_DEMO_SECONDS", "60"))
"""The shortest time of clicks; on a slow machine Spark may need longer."""
KILLED_AT, BACK_AFTER = 0.5, 0.2  # of that time
PATIENCE_S = 300.0
LOOK_EVERY_S = 3.0
SILENCE_S = 15.0
BAR = 30


def start_brokers(cluster: Cluster) -> None:
    begin = time.perf_counter()
    cluster.start()
    ports = ", ".join(str(broker.port) for broker in cluster.brokers.values())
    controller = cluster.admin.cluster().controller_id
    say(f"{COUNT} brokers, ready {time.perf_counter() - begin:.1f} s after `penstock start broker-N.properties`:")
    show(f"1, 2 and 3 on ports {ports} of this machine; they elected {controller} as their controller")
    for topic in (CLICKS, CLEAN, DEAD):
        cluster.admin.create_topic(topic, PARTITIONS, COUNT)
    cluster.wait_for(CLICKS, lambda topic: not any(one.is_under_replicated for one in topic.partitions), "no replicas")
    say(f"topics {CLICKS} -> {CLEAN}, {DEAD}: {PARTITIONS} partitions, each on all {COUNT} brokers.")
    show("min.insync.replicas=2: acknowledged means on the disks of at least two brokers")
    describe(cluster)


def describe(cluster: Cluster) -> None:
    say(f"penstock topics describe --name {CLICKS}")
    show(run(cluster, "topics", "describe", "--name", CLICKS))


def run(cluster: Cluster, *arguments: str) -> str:
    command = [*PENSTOCK, *arguments, "--bootstrap-server", cluster.addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"penstock {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def kill_leader(cluster: Cluster, stream: Clickstream) -> Broker:
    """Kills the leader of the first partition of clicks. Returns when the producer has recovered."""
    before = cluster.admin.topic(CLICKS).partitions
    leader = before[0].leader
    if leader is None:
        raise Failed(f"{CLICKS}-0 has no leader")
    led = [partition.id for partition in before if partition.leader == leader]
    others = [partition.id for partition in before if partition.leader != leader]
    what = " and ".join(f"{CLICKS}-{partition}" for partition in led)
    also = ", and is the controller" if cluster.admin.cluster().controller_id == leader else ""
    say(f"kill -9 of broker {leader}, which leads {what}{also}. Clicks and pipeline go on")
    stream.forget_pauses()
    killed_at = time.monotonic()
    cluster.brokers[leader].kill()
    topic, took_s = cluster.wait_for(
        CLICKS,
        lambda topic: all(topic.partitions[one].leader not in (None, leader) for one in led),
        f"no broker took over {what}",
    )
    successors = ", ".join(f"broker {topic.partitions[one].leader} leads {CLICKS}-{one}" for one in led)
    say(f"{successors} now, {took_s:.1f} s after the kill")
    wait_for_answers(stream, killed_at + took_s, led)
    say(f"the producer waited {stream.longest_pause_s(led):.1f} s for an acknowledgement from {what}")
    if others:
        show(f"and {stream.longest_pause_s(others):.1f} s at most from the other partitions")
    describe(cluster)
    return cluster.brokers[leader]


def wait_for_answers(stream: Clickstream, since: float, partitions: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while stream.is_alive() and not stream.has_answer_since(since, partitions):
        if time.monotonic() > deadline:
            raise Failed("the producer got no more acknowledgements")
        time.sleep(0.02)


def bring_back(cluster: Cluster, broker: Broker) -> None:
    say(f"penstock start {broker.file.name}: broker {broker.number} comes back")
    broker.start()
    broker.wait_ready()
    _, took_s = cluster.wait_for(
        CLICKS,
        lambda topic: all(broker.number in partition.isr for partition in topic.partitions),
        f"broker {broker.number} did not catch up",
    )
    say(f"it has caught up: in sync again {took_s:.1f} s after it was ready")
    describe(cluster)


class Watch:
    """Checks clicks and pipeline every few seconds, and prints their progress."""

    def __init__(self, cluster: Cluster, project: Project, stream: Clickstream) -> None:
        self._cluster, self._project, self._stream = cluster, project, stream
        self._worst = 0
        self._deadline = 0.0
        self._told: tuple[str, int | None] | None = None
        self._told_at = 0.0
        self.away: Broker | None = None
        """A broker was killed and is not back yet."""

    def look(self) -> dict[str, Any]:
        """The pipeline's status. Raises if anything has failed."""
        time.sleep(LOOK_EVERY_S)
        self._project.check_alive()
        for broker in self._cluster.brokers.values():
            if broker is not self.away:
                broker.check_alive()
        if self._stream.error:
            raise Failed(self._stream.error)
        status = self._project.status()
        self._tell(lag_of(status), is_reading(status))
        return status

    def _tell(self, lag: int | None, is_reading: bool) -> None:
        """Prints the progress, but not the same line twice."""
        state = f"{self._stream.total:,} clicks acknowledged" if self._stream.is_alive() else "clicks ended"
        now = time.monotonic()
        if (state, lag) == self._told and now < self._told_at + SILENCE_S:
            return
        if self._told is None or self._told[1] != lag:
            self._deadline = now + PATIENCE_S
        elif now > self._deadline:
            raise Failed(f"the pipeline has made no progress for {PATIENCE_S:.0f} s")
        self._told, self._told_at = (state, lag), now
        if lag is None:
            say(f"{state:<32} {'Spark reads its first batch' if is_reading else 'Spark is starting'}")
            return
        self._worst = max(self._worst, lag)
        say(f"{state:<32} lag {lag:>8,}  {'#' * round(BAR * lag / max(self._worst, 1))}")

    def until(self, at: float) -> None:
        while time.monotonic() < at:
            self.look()

    def until_reading(self) -> None:
        while not is_reading(self.look()):
            pass

    def until_caught_up(self) -> None:
        """Checks twice in a row, because the pipeline may have been between two runs."""
        idle_looks = 0
        while idle_looks < 2:
            idle_looks = idle_looks + 1 if is_idle(self.look()) else 0


def play(cluster: Cluster, project: Project, stream: Clickstream) -> None:
    """Sends clicks all the time. Half way, while the pipeline reads, a leader is killed; it comes back later."""
    begin = time.monotonic()
    watch = Watch(cluster, project, stream)
    watch.until_reading()
    watch.until(begin + SECONDS * KILLED_AT)
    watch.away = kill_leader(cluster, stream)
    watch.until(time.monotonic() + SECONDS * BACK_AFTER)
    bring_back(cluster, watch.away)
    watch.away = None
    watch.until(begin + SECONDS)
    stream.stop()
    watch.until_caught_up()


def tell(cluster: Cluster, project: Project) -> None:
    start_brokers(cluster)
    project.make(CLICKS)
    say(f"penstock pipeline init {project.directory.name}: a project with definitions in Python and SQL")
    say("penstock pipeline serve: starting Spark")
    project.serve()
    stream = Clickstream(cluster.addresses, CLICKS, RATE)
    stream.start()
    say(f"clicks: {RATE:,} per second from now on, with the Python client; about 1 % of them are bad")
    play(cluster, project, stream)
    say(f"{stream.total:,} clicks acknowledged, {stream.count(good=True):,} of them good; the pipeline has read all")
    project.stop()
    warehouse = project.directory / "warehouse"
    check_table(warehouse, stream)
    check_results(cluster.addresses, CLEAN, stream)
    check_dead_letters(cluster.addresses, DEAD, stream)
    say("penstock lag (any Kafka tool shows the same):")
    show(run(cluster, "lag"))
    show_view(warehouse, stream)
    table = project.directory / "clean-table"
    say(f"penstock table follow --topic {CLEAN} --to {table.name} --once: a topic as a table, without Spark")
    follow = ("--topic", CLEAN, "--to", str(table), "--mode", "json", "--schema", SCHEMA, "--once")
    show(run(cluster, "table", "follow", *follow).splitlines()[-1])
    show_followed(table, stream)
    cluster.stop()
    say("done: nothing is lost or duplicated in the table. All files of the demo are removed.")


def _end_on_terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    try:
        find_java()
    except JavaNotFound as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _end_on_terminate)
    work = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    cluster = Cluster(work / "cluster")
    project = Project(work / "shop", cluster.addresses)
    try:
        tell(cluster, project)
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        print(project.output(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        project.end()
        cluster.end()
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
