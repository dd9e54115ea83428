"""The benchmark: measures a hub on this machine; each figure names its durability.

Producers and consumers are processes that use the public client, as programs of users do; only the parts with many
connections use the wire protocol directly. `crew` starts and ends the processes, `workers` has their functions,
`report` prints the figures, and the other modules are the measurements.
"""
