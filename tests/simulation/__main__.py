"""`python -m tests.simulation --seed 7` lives one life again and shows it; `--schedules N` lives N on all cores."""

from tests.simulation.run import main

main()
