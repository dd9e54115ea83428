"""The room for Spark: a data source over snapshots of the journal. It opens with the release that makes snapshots.

Blocks are columnar already, so what will stand here maps their arrays and copies nothing; see `fabric.block`.
"""
