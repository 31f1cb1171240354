"""Transport over Flower; the only package that imports it.

`protonorm deploy` uses Flower's server (its SuperLink) and the protocol of its nodes (the Fleet API), with three
changes that a federation between organisations needs:

- **No code is sent.** Flower's node runs the app that the server sends; ours never requests it. A client runs what its
  owner has installed, and receives only bytes, which are validated.
- **Only the Fleet API is reachable.** Flower's server also opens, on the same port and without authentication, an API
  that registers keys and starts programs on the server and on all nodes. Ours serves the Fleet API alone, to clients
  whose keys are on the roster, and checks key, signature and size before it reads a request.
- **No process per message, no polling.** A client is one process; the server holds its request for work until there is
  some.

    client: fleet.py, client.py      signed requests over TLS      server: gate.py, superlink.py, transport.py

The same messages also work with a plain `flwr run`: an exported app (`export.py`) uses `app.py` with Flower's own
SuperLink and SuperNodes.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
