"""`python -m penstock`: the command line, for an interpreter whose scripts are not on the path."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
