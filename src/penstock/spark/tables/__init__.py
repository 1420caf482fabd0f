"""Tables of `penstock.tables` in Spark: `format("penstock-table")`.

datasource.py   the data source
options.py      its options
writing.py      the sink: tasks stage files, the driver's commit makes one version of them
upkeep.py       compaction and expiry after a commit
reading.py      a version of a table, file by file
streaming.py    the versions of a table as they come
skipping.py     files that a query's filters exclude
"""
