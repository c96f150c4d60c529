"""Configuration files of servers: properties, one in a line."""

from collections.abc import Mapping

ConfigValue = str | int | float | bool


def format_config(config: Mapping[str, ConfigValue]) -> str:
    return "".join(f"{key}={_format(value)}\n" for key, value in config.items())


def _format(value: ConfigValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
