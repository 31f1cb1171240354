"""Let `python -m protonorm` be `protonorm`, and import nothing from the folder that it is called in."""

import os
import sys

# -m puts the current folder first: a torch.py that lies there would be executed. -P does not put it there, nor does the
# command `protonorm`; only they can keep a functools.py or types.py away, which Python needs before it comes here.
here = os.path.realpath(sys.path[0]) if sys.path and not sys.flags.safe_path else ""
home = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
if here == os.path.realpath(os.curdir) and here != home:
    del sys.path[0]

from protonorm.cli.app import main  # noqa: E402

main()
