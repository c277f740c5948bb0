"""The messages of a queue in one state, in id order."""


def in_state(after: str = "0") -> str:
    """Return the SQL for: in the state `wanted.status`, with an id beyond `after`. To be read in the order of status and id.

    Worded as a range of both, so that only `message_status` has that order. Were the state an equation, the primary key would have it
    too, and Postgres, where it takes nearly all messages to be in that state, would walk all that are not.
    """
    return f"(message.status, message.id) > (wanted.status, {after}) and message.status <= wanted.status and message.status <> ''"
