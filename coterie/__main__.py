"""`python -m coterie` is the command `coterie`."""

from .cli.main import main

if __name__ == "__main__":
    main()
