"""The demo's jupyterhub_config.py; `demo_hub.py` says the places by DEMO_HUB_…."""

import os

import hub_spawner
from hub_spawner.service.registration import add_service

FOLDER = os.environ["DEMO_HUB_FOLDER"]
PORT = os.environ["DEMO_HUB_PORT"]

c = get_config()  # noqa: F821
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}/"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{os.environ['DEMO_HUB_API_PORT']}/hub/"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['DEMO_HUB_PROXY_PORT']}"
c.ConfigurableHTTPProxy.command = [os.environ["DEMO_HUB_PROXY"]]
c.ConfigurableHTTPProxy.pid_file = f"{FOLDER}/proxy.pid"
c.JupyterHub.db_url = f"sqlite:///{FOLDER}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{FOLDER}/cookie_secret"
c.JupyterHub.cleanup_servers = True  # the demo's end ends all of it
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ["DEMO_HUB_PASSWORD"]
c.Authenticator.allowed_users = {"ana", "bob"}
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.services = [{"name": "story", "api_token": os.environ["DEMO_HUB_TOKEN"]}]
# A spawn answers at once, so that the story can follow its page from the beginning.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.load_roles = [
    {"name": "story", "services": ["story"], "scopes": ["admin:users", "admin:servers", "access:servers"]}
]
# Both users' servers run as the Unix user that started the demo: grants name each kernel's user.
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = f"{FOLDER}/home/{{username}}"
c.Spawner.args = ["--allow-root"] if os.getuid() == 0 else []
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.grant_key = f"{FOLDER}/hub-1.key"
c.Spawner.grant_audience = ["affinode:demo"]
c.Spawner.gpu_socket = os.environ["AFFINODE_SOCKET"]
c.Spawner.gpu_memory = os.environ["DEMO_HUB_GPU_MEMORY"]
c.Spawner.gpu_wait_s = 60
add_service(
    c,
    url=f"http://127.0.0.1:{os.environ['DEMO_HUB_SERVICE_PORT']}",
    nodes={"this machine": os.environ["AFFINODE_SOCKET"]},
)
hub_spawner.enable(c)
