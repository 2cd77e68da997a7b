"""The configuration, whatever is in the file."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from odd_values import damaged

from agent.app.config import Loaded, read_config
from agent.app.discovery import prepare
from agent.app.yaml_document import ConfigError
from agent.core.log import Logger

TEXT = b"""# a node
web:
  listen_address: 127.0.0.1:19028
state: {path: /var/lib/rankwatch/checkpoint}
health:
  count: [gpu_hot]
  ignore:
    - storage_failed
exporters:
  inspector:
    paths: [/var/lib/rankwatch/inspector, "/tmp/x"]
    poll_interval_seconds: 0.5
  ras: {enabled: true, addresses: ["localhost:28028", "[::1]:28028"], role: auto, oldest_version: "2.29.2",
        min_interval_seconds: 7.0, max_ranks: 4096}
  nvml: {hot_celsius: 85, hang_seconds: 10}
  storage: {paths: [/data], dump_paths: [/dump], deadline_seconds: 10, full_ratio: 0.05}
  kernel_log: {path: /dev/kmsg}
  rdma: {ignore_devices: [mlx5_9]}
  netdev:
    enabled: false
  process:
  amdgpu: {enabled: auto}
"""


def load(path: Path, content: bytes) -> None:
    """Read and check a file as the agent does at its start."""
    path.write_bytes(content)
    prepare(Loaded(read_config(path), "f.yml"), Logger("test"))


def test_the_text_itself_is_a_configuration(tmp_path: Path) -> None:
    """What is damaged below is whole."""
    load(tmp_path / "f.yml", TEXT)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(TEXT))
def test_any_file_is_a_configuration_or_a_mistake(tmp_path: Path, content: bytes) -> None:
    """A damaged file is taken, or refused on one line."""
    try:
        load(tmp_path / "f.yml", content)
    except ConfigError as error:
        assert "\n" not in str(error)
