"""The federation as an app for Flower's own commands; the only package that imports Flower, by its public API alone.

`protonorm deploy export-app` writes an app (`export.py`) whose server and clients (`app.py`) carry the same messages as
`protonorm deploy` over Flower's grid (`transport.py`). Flower's nodes run the app that the server sends.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
