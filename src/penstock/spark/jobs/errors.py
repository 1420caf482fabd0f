"""What can be wrong with a ready-made pipeline.

JobError                  it cannot run now: its state is in use by another process
+-- WrongJob              it can never run as asked: arguments, topics that are not there. Exit code 2
`-- JobFailed             it ran and ended with an error: why, in one sentence. Exit code 3
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class JobError(PenstockError):
    pass


class WrongJob(JobError):
    pass


class JobFailed(JobError):
    pass
