"""What is told of an error."""

MAX_ERROR_CHARS = 8192


def said(error: BaseException) -> str:
    """What an error says of itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is still ends the attempt
        return ""


def failure_text(error: BaseException) -> str:
    """What the service keeps of an error: its type and message, without what no service could store."""
    text = ": ".join(part for part in (type(error).__name__, said(error)) if part)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()[:MAX_ERROR_CHARS]
