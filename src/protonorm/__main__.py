"""Let `python -m protonorm` be `protonorm`."""

from protonorm.cli.app import main

main()
