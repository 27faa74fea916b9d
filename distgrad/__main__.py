"""`python -m distgrad` is the command line."""

from distgrad.cli import main

if __name__ == "__main__":
    main()
