"""A program that makes the refused attempts of the table on another host: each answer is a line of JSON.

Its standard input has the address of the hub, its key, and the keys of the principals.
"""

import json
import sys
from contextlib import ExitStack

import zmq

from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.kit import Talker
from tests.network.tenants import PATIENT, ROWS, answer


def main() -> None:
    given = json.load(sys.stdin)
    with zmq.Context() as context, ExitStack() as stack:
        talkers: dict[str, Talker] = {}
        for row in ROWS:
            if row.principal not in talkers:
                keys = (*given["keys"][row.principal], given["hub_key"])
                talkers[row.principal] = stack.enter_context(Talker(context, given["url"], keys))
                talkers[row.principal].hello(**PATIENT)
            talker = talkers[row.principal]
            said = answer(talker, row.attempt.message)
            code, text = (Code(said.code).name, said.text) if isinstance(said, m.Err) else ("", str(said))
            talker.still_served()
            told = {"name": row.attempt.name, "principal": row.principal, "code": code, "text": text}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
