"""Command lines with --set KEY=VALUE: what argparse says of a second one without --set."""

import argparse
from typing import NoReturn


class SettingsParser(argparse.ArgumentParser):
    """A parser of a command with --set."""

    def error(self, message: str) -> NoReturn:
        super().error(with_cure(message))


def with_cure(message: str) -> str:
    """Return a message of argparse, with what to do if it is of KEY=VALUE without --set."""
    unread = message.removeprefix("unrecognized arguments: ")
    word = unread.split()[0]
    is_setting = "=" in word and not word.startswith("-")
    return f"{message}; put --set before {word}" if unread != message and is_setting else message
