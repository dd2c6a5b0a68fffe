"""Which provisioner starts kernels whose kernelspec names none, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass

from jupyter_client.provisioning import KernelProvisionerFactory
from traitlets.config import Config, Configurable

OURS = "affinode-provisioner"
LOCAL = "local-provisioner"


@dataclass(frozen=True)
class DefaultProvisioner:
    """The default and the reason for it, in words for a log line and for `doctor`."""

    name: str
    reason: str

    @property
    def is_ours(self) -> bool:
        """Whether new kernels are managed."""
        return self.name == OURS


def claim_default(parent: Configurable, *, enabled: bool = True) -> DefaultProvisioner:
    """Make our provisioner the default in this process, unless the site chose another.

    The default is set on the factory and in no file, so kernels start as before once this package is uninstalled. A
    choice by configuration or by the environment wins, also if it is the local provisioner.
    """
    factory = KernelProvisionerFactory.instance(parent=parent)
    found = site_choice(parent.config)
    if found is not None:
        return found
    if factory.default_provisioner_name != LOCAL:
        return DefaultProvisioner(factory.default_provisioner_name, "another extension chose it")
    if not enabled:
        return DefaultProvisioner(LOCAL, "jupyter-affinode is switched off (AffinodeExtension.enabled)")
    if OURS not in factory.get_provisioner_entries():
        return DefaultProvisioner(
            LOCAL, f"{OURS} is not registered: is jupyter-affinode installed completely?"
        )
    factory.default_provisioner_name = OURS
    return DefaultProvisioner(OURS, "nothing else was configured")


def site_choice(config: Config) -> DefaultProvisioner | None:
    """Return the provisioner that the site's configuration or environment names; None if they name none."""
    configured = config.get("KernelProvisionerFactory", {}).get("default_provisioner_name")
    if configured:
        return DefaultProvisioner(
            str(configured), "KernelProvisionerFactory.default_provisioner_name is configured"
        )
    name = KernelProvisionerFactory.default_provisioner_name_env
    if os.environ.get(name):
        return DefaultProvisioner(os.environ[name], f"the environment says {name}={os.environ[name]}")
    return None
