"""Publish the rows of a SQLite table, each once, however often this program is stopped or killed.

Start a hub first: fabric hub

python examples/numbered_source.py [DATABASE]
"""

import sqlite3
import sys

import fabric_client


def main(path: str = "orders.db") -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")
    with database:  # what another program would do
        database.executemany("INSERT INTO outbox (body) VALUES (?)", [(f"order {n}",) for n in range(3)])

    # The name says what the positions count. The hub keeps the last position; this program keeps nothing.
    with fabric_client.connect(source=f"sqlite:{path}:outbox") as fab:
        print(f"rows up to {fab.position} are published")
        for position, body in database.execute("SELECT id, body FROM outbox WHERE id > ? ORDER BY id", (fab.position,)):
            fab.publish_numbered_nowait(position, "outbox.rows", body)
        fab.flush()
        print(f"rows up to {fab.position} are published")
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
