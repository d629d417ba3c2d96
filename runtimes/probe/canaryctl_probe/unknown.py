"""The one word for what cannot be said."""


class UnknownError(Exception):
    """Why a fact is unknown, in words. Never read as zero."""
