"""Tables of Penstock as other programs read them: DuckDB, Polars, and a Spark that is older than ours."""
