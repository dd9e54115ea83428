"""Publish, take a snapshot, ask Spark: the five minutes of docs/spark.md in one script, cell by cell.

python examples/spark_quickstart.py [JOURNAL] [SNAPSHOTS]

A hub must run on this machine: fabric hub --data fabric-data
"""

# %% Where things are
import json
import random
import sys

import fabric_client
import fabric_spark
from fabric.snapshot import create_in

JOURNAL, SNAPSHOTS = (*sys.argv[1:3], *("fabric-data", "snapshots")[len(sys.argv) - 1 :])

# %% Publish a few thousand orders
LANDS = ("de", "fr", "it")
dice = random.Random(7)
orders = [
    {"id": n, "customer": f"c{n % 50}", "euros": round(dice.uniform(5, 90), 2), "country": dice.choice(LANDS)}
    for n in range(5_000)
]
with fabric_client.connect() as fab:
    for order in orders:
        fab.publish_nowait(f"orders.{order['country']}", order, key=str(order["customer"]), headers={"source": "shop"})
    fab.flush()

# %% Take a snapshot: consistent, checked, and sharing files with the snapshot before it
made = create_in(JOURNAL, SNAPSHOTS)
print(f"{made.manifest.messages} messages in {made.path}")

# %% Ask Spark
spark = fabric_spark.session("quickstart")
messages = spark.read.format("fabric").option("topics", "orders.*").load(str(made.path))
messages.createOrReplaceTempView("messages")
revenue = spark.sql(
    """
    select topic, count(*) orders, round(sum(euros), 2) revenue
    from (
        select topic, from_json(decode(payload, 'UTF-8'), 'id long, customer string, euros double').euros euros
        from messages
    )
    group by topic
    order by topic
    """
)
revenue.show()

# %% The same, counted by hand
assert {row.topic: row.orders for row in revenue.collect()} == {
    f"orders.{land}": sum(order["country"] == land for order in orders) for land in LANDS
}

# %% Headers are a map, keys are bytes, and only the columns that are named are read
latest = (
    spark.read.format("fabric")
    .option("topics", "orders.*")
    .option("columns", "seq,ts,key,headers,payload")
    .load(str(made.path))
    .where("decode(headers['source'], 'UTF-8') = 'shop'")
    .orderBy("seq", ascending=False)
    .limit(3)
)
for row in latest.collect():
    print(row.seq, row.ts, row.key.decode(), json.loads(row.payload)["euros"])
