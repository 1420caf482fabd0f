"""Only an in-sync or an eligible (KIP-966) replica may be elected leader of a partition.

Other replicas lack acknowledged records. With `unclean.leader.election.enable` any replica may be elected rather than
none. Must not know: brokers, how a controller decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage, PartitionState
from penstock.sim.judges.history import Violation

UNCLEAN = "unclean.leader.election.enable"


def check_elected(image: MetadataImage, topic: str, before: PartitionState, asked: Sequence[int], elected: int) -> None:
    """`asked`: the in-sync replicas in the requested change, which are known to have everything."""
    if elected in (before.leader, *before.isr, *before.elr, *before.last_known_elr, *asked):
        return
    if not may_be_unclean(image, topic):
        raise Violation(
            "an elected leader was in sync or eligible",
            f"{topic}-{before.index}: {elected} is to lead; in sync were {list(before.isr)}, eligible "
            f"{list(before.elr)}",
        )


def may_be_unclean(image: MetadataImage, topic: str) -> bool:
    """The topic's setting, else the setting of all brokers."""
    said = [image.configs.get(key, {}).get(UNCLEAN) for key in ((RESOURCE_TOPIC, topic), (RESOURCE_BROKER, ""))]
    return next((value == "true" for value in said if value is not None), False)
