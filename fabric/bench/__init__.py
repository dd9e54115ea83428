"""The benchmark: what this machine does with this hub, with the durability of every figure named.

Producers and consumers are processes of their own that use the public client, as a user's programs would; only the
part about single messages from many connections speaks the wire itself. `crew` starts and ends the processes,
`workers` is what they do, `parts` and `growth` are the measurements, `report` is how they look.
"""
