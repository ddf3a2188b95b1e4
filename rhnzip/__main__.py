"""`python -m rhnzip` is the `rhnzip` command."""

from rhnzip.cli import main

if __name__ == "__main__":
    main()
