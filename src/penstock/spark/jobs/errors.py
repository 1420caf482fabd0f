"""The errors of ready-made pipelines.

JobError                  it cannot run now: its state is in use by another process
+-- WrongJob              it can never run as requested: wrong arguments, missing topics. Exit code 2
`-- JobFailed             it ran and failed; the reason is one sentence. Exit code 3
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class JobError(PenstockError):
    pass


class WrongJob(JobError):
    pass


class JobFailed(JobError):
    pass
