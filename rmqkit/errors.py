"""Errors that every part of rmqkit may raise or catch."""


class RmqkitError(Exception):
    """The base of all errors that rmqkit raises on purpose. Its text is one line made for the user."""


class ConfigError(RmqkitError):
    """A setting that cannot be used: unknown key, value out of range, a promise that it would break."""
