"""Entry point for `python -m protonorm`; removes the current folder from the import path."""

import os
import sys

# -m puts the current folder first on the path, so a torch.py in it would be executed. `python -P` and the command
# `protonorm` do not; only they also protect against a functools.py or types.py, which Python imports before this file.
here = os.path.realpath(sys.path[0]) if sys.path and not sys.flags.safe_path else ""
home = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
if here == os.path.realpath(os.curdir) and here != home:
    del sys.path[0]

from protonorm.cli.app import main  # noqa: E402

main()
