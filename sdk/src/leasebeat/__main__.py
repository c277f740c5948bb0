"""`python -m leasebeat` is the command line `leasebeat`."""

from leasebeat.cli import main

if __name__ == "__main__":
    main()
