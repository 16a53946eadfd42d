"""The ingest of topics into tables of Iceberg and Delta, exactly once.

A run reads the offsets of its job from the table, writes data files, and commits the files and the new offsets in one
commit of the table. The table is the only state, so nothing can disagree with it after a crash.

`job` has the steps of a run, and `table_format` the interface of a format. `rows` are what tasks read, and `runners`
where they run: in processes of this machine, or in Spark. No format knows Spark.
"""
