"""Properties of servers, as their configuration files have them."""

from collections.abc import Iterator, Mapping

ConfigValue = str | int | float | bool


def properties(config: Mapping[str, ConfigValue]) -> Iterator[str]:
    """Each as `key=value`."""
    for key, value in config.items():
        yield f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def format_config(config: Mapping[str, ConfigValue]) -> str:
    """The content of a configuration file."""
    return "".join(f"{line}\n" for line in properties(config))
