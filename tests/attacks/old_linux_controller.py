"""The controller on a Linux before 6.16, which cannot refuse descriptors; with the arguments of a controller."""

from __future__ import annotations

from jupyter_affinode.node import peer_socket
from jupyter_affinode.node.app import NodeController

if __name__ == "__main__":
    peer_socket.SO_PASSRIGHTS = 0x7FFF  # no option of any Linux
    NodeController.launch_instance()
