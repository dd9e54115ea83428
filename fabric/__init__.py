"""Fabric: durable messaging over ZeroMQ with an LMDB journal."""

import os

from fabric_protocol import __version__ as __version__

if os.path.exists(os.path.join(os.path.dirname(__file__), "connection.py")):
    raise ImportError(
        "fabricmq and the SSH tool 'fabric' are installed over each other, since both have a package named fabric: "
        "make a new environment and install fabricmq alone"
    )
