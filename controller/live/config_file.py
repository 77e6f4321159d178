"""The YAML file that holds the controller's section: read anew on request, or when it has changed. Must not import ray."""

from pathlib import Path

from pydantic import ValidationError

from controller.config import ControllerConfig, check_deployed, explain
from controller.watched_file import WatchedFile
from workload.strict_yaml import read_yaml_file

SECTION = "controller"
LOOK_EVERY_S = 1.0


class ConfigFile(WatchedFile):
    """A configuration file, looked at once a second at most; None: the controller was given its configuration otherwise."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)
        super().__init__(self.path, LOOK_EVERY_S, now_s=0.0)

    def read(self) -> ControllerConfig:
        """Read and check the section.

        Raises:
            ValueError: with the file's name and one line for each fault that names the key.
        """
        if self.path is None:
            raise ValueError("this controller was started without a configuration file: there is nothing to reload")
        data = read_yaml_file(self.path)
        if not isinstance(data, dict):
            raise ValueError(f"{self.path}: expected a mapping with the key {SECTION}, got {data!r}")
        section = data.get(SECTION, {})
        if section is None:  # the beginning of a file that is being written looks like that
            raise ValueError(f"{self.path}: {SECTION}: expected a mapping, or no such key, got nothing behind it")
        try:
            return ControllerConfig.model_validate(section)
        except ValidationError as error:
            raise ValueError(f"{self.path}: {explain(error, f'{SECTION}.')}") from None

    def at_start(self, given: ControllerConfig) -> tuple[ControllerConfig, str | None]:
        """Return what a controller begins with, and what is wrong with the file; None: nothing, or there is no file.

        That is the file's section, where there is one: who takes a dead controller's place was given what the service was
        deployed with, and its predecessor may have reloaded the file since. It is ``given`` where running replicas could not go
        on under it.
        """
        if self.path is None:
            return given, None
        try:
            found = self.read()
            check_deployed(given, found)
        except ValueError as error:
            return given, str(error)
        return found, None
