"""`python -m app` is `leasebeat-server`."""

from app.cli import main

main()
