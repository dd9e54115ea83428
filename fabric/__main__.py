"""`python -m fabric` is the command `fabric`."""

from fabric.cli import main

if __name__ == "__main__":
    main()
