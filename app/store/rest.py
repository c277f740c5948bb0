"""How often everything is looked at, where a look as a rule goes no further than to what is known."""

_SHORTEST_S = 1.0
_LONGEST_S = 60.0
_SHARE = 50


def rest_after(look: float) -> float:
    """Return the seconds to rest after a look that took so many: fifty times as long, but a second at least and a minute at most."""
    return min(_LONGEST_S, max(_SHORTEST_S, _SHARE * look))
