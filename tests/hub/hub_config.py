"""jupyterhub_config.py of the Hubs under test. HUB_TEST says in JSON what a test wants otherwise."""

import json
import os

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import default

WANTED = json.loads(os.environ["HUB_TEST"])
UIDS = {"ana": 61011, "bob": 61012}


class UnixUserSpawner(LocalProcessSpawner):
    """Runs each user's server as a Unix user of their own, without an account being made for that."""

    @default("unix_name")
    def _default_unix_name(self):
        return str(UIDS.get(self.user.name, 61013))

    def make_preexec_fn(self, name):
        uid, home = UIDS.get(name, 61013), self.home

        def become():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.chdir(home)

        return become

    @property
    def home(self):
        home = os.path.join(WANTED["folder"], "home", self.user.name)
        if not os.path.isdir(home):
            os.makedirs(home)
            uid = UIDS.get(self.user.name, 61013)
            os.chown(home, uid, uid)
        return home

    def user_env(self, env):
        env.update(USER=self.user.name, HOME=self.home, SHELL="/bin/sh")
        # Else their keepers were those of all tests that run at the same time.
        env.setdefault("AFFINODE_FOLDER", os.path.join(self.home, ".affinode"))
        for name in (
            "JUPYTER_RUNTIME_DIR",
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "IPYTHONDIR",
            "XDG_RUNTIME_DIR",
        ):
            env.pop(name, None)
        return env


def note(line):
    """Write a line that tests read."""
    with open(os.path.join(WANTED["folder"], "hooks"), "a") as file:
        file.write(line + "\n")


c = get_config()  # noqa: F821
c.JupyterHub.bind_url = f"http://127.0.0.1:{WANTED['port']}/"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{WANTED['hub_port']}/hub/"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{WANTED['proxy_port']}"
c.ConfigurableHTTPProxy.command = WANTED["proxy"]
c.ConfigurableHTTPProxy.auth_token = "proxy-token"
c.ConfigurableHTTPProxy.pid_file = os.path.join(WANTED["folder"], "proxy.pid")
c.JupyterHub.db_url = "sqlite:///" + os.path.join(WANTED["folder"], "hub.sqlite")
c.JupyterHub.cookie_secret = b"0" * 32
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.cleanup_servers = WANTED.get("cleanup_servers", True)
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root", "admin"}
c.JupyterHub.services = [{"name": "tester", "api_token": "tester-token"}]
c.JupyterHub.load_roles = [
    {
        "name": "tester",
        "services": ["tester"],
        "scopes": ["admin:users", "admin:servers", "access:servers", "tokens", "groups", "admin:groups"],
    }
]
c.JupyterHub.spawner_class = UnixUserSpawner
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.Spawner.http_timeout = c.Spawner.start_timeout = 120
c.Spawner.cmd = WANTED["cmd"]
c.Spawner.args = WANTED.get("args", [])
c.Spawner.pre_spawn_hook = lambda spawner: note(f"base {spawner.user.name}")


async def hook_of_subclass(spawner):
    """An admin's hook on the very class."""
    note(f"sub {spawner.user.name}")
    if spawner.user.name == "unlucky":
        raise RuntimeError("the admin's own error")


if WANTED.get("subclass_hook"):
    c.UnixUserSpawner.pre_spawn_hook = hook_of_subclass
c.Spawner.post_stop_hook = lambda spawner: note(f"stopped {spawner.user.name}")
c.Spawner.group_overrides = {
    "vision": {
        "groups": {"vision"},
        "spawner_override": {
            "gpu_memory": "100MiB",
            "grant_key": os.path.join(WANTED["folder"], "hub-1.key"),
            "grant_url": "http://hub/services/affinode/grant",
        },
    },
    "strict": {"groups": {"strict"}, "spawner_override": {"on_gpu_full": "refuse", "gpu_wait_s": 0.3}},
}
c.Spawner.environment = WANTED.get("environment", {})
note(f"socket {os.environ['AFFINODE_SOCKET']}")
for name, value in WANTED.get("spawner", {}).items():
    setattr(c.Spawner, name, value)

import hub_spawner  # noqa: E402

hub_spawner.enable(c)
hub_spawner.enable(c)  # a second time changes nothing
exec(WANTED.get("later", ""))  # what other files of a site say after it

if "service" in WANTED:
    from hub_spawner.service.registration import add_service

    # ben may open the service, and is no administrator
    visitors = {"name": "visitors", "users": ["ben"], "scopes": ["access:services!service=affinode"]}
    c.JupyterHub.load_roles.append(visitors)
    c.Authenticator.allowed_users = {"ben"}
    for _ in range(2):  # a second time changes nothing
        add_service(c, url=WANTED["service_url"], **WANTED["service"])
