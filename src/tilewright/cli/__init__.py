"""The command line: thin words over the packages below."""

from tilewright.cli.app import main

__all__ = ["main"]
