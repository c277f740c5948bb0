"""One program per peer. They run in the peers' own environment, as `python -m clients.<name>`, and so import nothing of the service.

Of the bench they have `bench.http`.
"""
