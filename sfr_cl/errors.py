"""One family of errors. Each is also the built-in that people expect to catch."""

__all__ = [
    "ArgumentError",
    "DataError",
    "DataTypeError",
    "FactorizationError",
    "FileError",
    "MemoryLimitError",
    "MismatchError",
    "MissingFileError",
    "NotFittedError",
    "SFRError",
    "SFRWarning",
]


class SFRError(Exception):
    """Base of every error this package raises on purpose. Nothing has changed when it is raised."""


class ArgumentError(SFRError, ValueError):
    """An option or a hyperparameter has a value that can't be used."""


class DataError(SFRError, ValueError):
    """Inputs or targets have values or shapes that can't be used."""


class DataTypeError(SFRError, TypeError):
    """Inputs or targets are of a type that can't be used."""


class NotFittedError(SFRError, RuntimeError):
    """The posterior was used before :meth:`SFRPosterior.fit`."""


class MismatchError(SFRError, ValueError):
    """Two things that must agree (networks, weights, inducing inputs, options) do not."""


class FactorizationError(SFRError, ArithmeticError):
    """A matrix that must be positive definite is not, and no permitted jitter mends it."""


class FileError(SFRError, ValueError):
    """A file is truncated, altered, or not one of ours."""


class MissingFileError(FileError, FileNotFoundError):
    """A file, or the folder of one, is not there."""


class MemoryLimitError(SFRError, MemoryError):
    """A request would need more memory than the device has free."""


class SFRWarning(UserWarning):
    """Something works, but not as well as it could; the message says what to change."""


def first_line(error: Exception) -> str:
    """What an error of someone else says, in a line of ours."""
    return str(error).partition("\n")[0].rstrip(": .")[:240]
