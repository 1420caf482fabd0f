"""Archives: topics as directories of Parquet files that any tool can read.

    DIR/topic=clicks/date=2026-01-31/p00000-<first offset>-<last offset>.parquet
    DIR/_penstock/manifest.json       which files there are, and up to where each partition is archived
    DIR/_penstock/staging/            files in the making
    DIR/_penstock/lock                held by whoever changes the archive

A record is in an archive exactly once because of its offset: the manifest says up to where each partition is archived,
and what lies before that is never written again. Neither batch numbers nor Spark's checkpoint take part.
"""
