"""Topics as Iceberg tables without Spark: rows in Arrow, files and commits by pyiceberg (extra `iceberg`).

`table_rows` makes rows of records, `column_types` says which columns they need, `iceberg_table` writes files
and commits them with the offsets of their records (`positions`), `upkeep` merges small files and expires
snapshots, `loading` is the loop; `catalogs` finds the tables.
"""
