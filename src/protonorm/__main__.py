"""Let `python -m protonorm` be `protonorm`."""

from protonorm.cli import main

main()
