"""`fabric config show` shows what `fabric hub` uses: random configurations, each given to both."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabric.cli import main
from fabric.cli.support import config
from fabric.cli.support.config_values import converted, key, toml
from fabric.cli.support.variables import variable
from fabric.hub import HubOptions
from tests.cli.test_config import CONTEXT, HUB, as_text, here, values_for

__all__ = ["here"]  # a fixture of that module

assert HUB is not None
OPTIONS = {key(option): option for option in config.settings(HUB) if key(option) != "aliases"}
LAYERS = ["file", ".env", "environment", "flag"]  # the lowest first


class Started(Exception):
    """A hub would run now."""


def used(words: list[str]) -> dict[str, Any]:
    """What `fabric hub` gives to the hub, by option."""
    started = mock.Mock(side_effect=Started)
    log = mock.Mock()
    with (
        mock.patch("fabric.hub.Hub", started),
        mock.patch("fabric.hub.log.set_up", log),
        mock.patch("fabric.hub.router_socket.raise_descriptor_limit"),
        pytest.raises(Started),
    ):
        main.main(["hub", *words], standalone_mode=False)
    (data, options), _ = started.call_args
    assert isinstance(options, HubOptions)
    (log_format, log_level), _ = log.call_args
    limits, thresholds = options.limits, options.thresholds
    return {
        "data": data,
        "bind": options.binds,
        "access": options.access,
        "advertise": options.advertise,
        "max-age": limits.max_age_s,
        "max-bytes": limits.max_bytes,
        "max-messages": limits.max_messages,
        "degraded-oldest": thresholds.oldest_s[0],
        "unhealthy-oldest": thresholds.oldest_s[1],
        "max-events-bytes": limits.events_bytes,
        "quota": limits.quota_bytes,
        "drain": options.drain_s,
        "log-format": log_format,
        "log-level": log_level,
        "allow-network-fs": options.allow_network_fs,
    }


def written(name: str, values: dict[str, Any]) -> str:
    """A file of the format that its suffix names; JSON is YAML, too."""
    if not name.endswith(".toml"):
        return json.dumps({"hub": values})
    return "[hub]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in values.items())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.dictionaries(
        st.sampled_from(sorted(OPTIONS)), st.dictionaries(st.sampled_from(LAYERS), st.integers(0, 3), min_size=1)
    ),
    file=st.sampled_from(["fabric.toml", "x.json", "x.yml"]),
    dash=st.sampled_from("-_"),
)
def test_what_is_shown_is_what_the_hub_uses(drawn: dict[str, dict[str, int]], file: str, dash: str, here: Path) -> None:
    given_values: dict[str, dict[str, Any]] = {layer: {} for layer in LAYERS}
    for name, numbers in drawn.items():
        values = values_for(OPTIONS[name], here)
        for layer, number in numbers.items():
            given_values[layer][name] = True if OPTIONS[name].is_flag and layer == "flag" else values[number]
    (here / file).write_text(written(file, {k.replace("-", dash): v for k, v in given_values["file"].items()}))
    texts = [
        {
            variable(("hub",), OPTIONS[name]): as_text(OPTIONS[name], value)
            for name, value in given_values[layer].items()
        }
        for layer in (".env", "environment")
    ]
    (here / ".env").write_text("".join(f"{name}='{text}'\n" for name, text in texts[0].items()))
    words = ["--config", file]
    for name, value in given_values["flag"].items():
        words += [f"--{name}"] if OPTIONS[name].is_flag else [f"--{name}", as_text(OPTIONS[name], value)]
    with mock.patch.dict(os.environ, texts[1]):
        shown = CliRunner().invoke(main, ["config", "show", *words, "--json"], prog_name="fabric")
        found = used(words)
    rows = {row["option"]: row for row in json.loads(shown.stdout)["options"]}
    assert found.keys() == OPTIONS.keys()
    untouched = used(["--config", "none"])
    for name, option in OPTIONS.items():
        layer = max(drawn.get(name, []), key=LAYERS.index, default="default")
        assert rows[name]["source"] == layer
        value = rows[name]["value"]
        if layer == "default":
            assert found[name] == untouched[name]
            assert value is None or converted(option, value, CONTEXT) == found[name]
        else:
            assert value == given_values[layer][name]
            assert converted(option, value, CONTEXT) == found[name]
