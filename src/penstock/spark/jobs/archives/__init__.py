"""Archives: topics as directories of Parquet files that any tool can read.

    DIR/topic=clicks/date=2026-01-31/p00000-<first offset>-<last offset>.parquet
    DIR/_penstock/manifest.json       the files, and the end offset of each partition
    DIR/_penstock/staging/            unfinished files
    DIR/_penstock/lock                held by the process that changes the archive

Offsets make sure that a record is in an archive exactly once: the manifest has the end offset of each partition, and
earlier records are never written again. Batch numbers and Spark's checkpoint do not matter.
"""
