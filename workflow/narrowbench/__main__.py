"""`python -m narrowbench`, for the rules: it needs nothing on the PATH."""

from narrowbench.cli import main

if __name__ == "__main__":
    main()
