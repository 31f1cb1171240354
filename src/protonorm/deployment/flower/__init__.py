"""Flower carries the messages; all that needs Flower is in this room.

`protonorm deploy` uses Flower's server (its SuperLink) and the protocol of its nodes (the Fleet API), with three parts
left out, for a federation between organisations cannot have them:

- **Nobody's code travels.** Flower's node runs the app that the server sends; ours never asks for it. A client runs
  what its owner has installed, and takes bytes from the server, which are validated.
- **Only the Fleet API is reachable.** Flower's server opens on the same port, to everybody and without authentication,
  an API that registers keys and starts programs on the server and on all nodes. Ours serves the Fleet API alone, to
  clients whose keys are on the roster, and looks at key, signature and size before it reads a request.
- **No process a message, no sleeping.** A client is one process; its question for work is held until there is some.

    client: fleet.py, client.py      question, signed, over TLS      server: gate.py, superlink.py, transport.py

The same messages pass through a plain `flwr run` as well: `client_app.py` and `server_app.py` are what an exported app
(`export.py`) uses, with Flower's own SuperLink and SuperNodes.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
