"""What a kernel's command does on its way to the kernel: which programs it runs, and whether the shim reaches the last.

Words that start another program are followed: env, shells and their texts, scripts, and whatever takes a command as
arguments (nice, taskset, srun …). Where a text cannot be read, nothing is said of it: `shim_sight` looks at the
kernel itself.
"""

from __future__ import annotations

import contextlib
import getopt
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..environment import SHIM_NAME
from .mounts import shows

PACKAGE = Path(__file__).resolve().parents[1]
PRELOAD = "LD_PRELOAD"
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
ENV_SIGNALS = re.compile(r"--(default|ignore|block)-signal(=|$)")
INTERPRETER = re.compile(r"(python|pypy)[\d.]*$")
SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "csh", "tcsh", "fish"))
SHELL_WORDS = frozenset(("if", "then", "else", "elif", "while", "until", "do", "{", "!", "time"))
CLEANS = frozenset(("sudo", "doas", "pkexec"))  # they give a program an environment of their own
# Others do so with one of these options. `--setenv` and the like bring the shim back by its name.
CLEARING = {
    **dict.fromkeys(("su", "runuser"), ("-", "-l", "--login")),
    "setpriv": ("--reset-env",),
    **dict.fromkeys(("nix-shell", "guix"), ("--pure",)),
    "nix": ("-i", "--ignore-environment"),
}
REMOTE = frozenset(("ssh", "slogin", "rsh", "mosh", "autossh", "condor_ssh_to_job", "qrsh"))
ENVIRONMENT_OPTIONS = ("-n", "--name", "-p", "--prefix", "-e", "--environment")
DEPTH_MAX = 16
SCRIPT_MAX_BYTES = 64 * 1024

# Programs that enter a container or another root, and the sub-commands with which they do; none: always.
_ENGINE = ("run", "exec", "start", "compose", "container")
_ENGINES = (
    *("docker", "podman", "nerdctl", "podman-hpc", "udocker", "finch", "balena", "buildah"),
    *("ctr", "crictl", "runc", "crun", "runsc"),
)
CONTAINERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("apptainer", "singularity"), ("exec", "run", "shell", "instance")),
    **dict.fromkeys((*_ENGINES, "docker-compose", "podman-compose"), _ENGINE),
    **dict.fromkeys(
        ("enroot", "sarus", "flatpak", "toolbox", "distrobox"), ("start", "exec", "run", "enter")
    ),
    **dict.fromkeys(("kubectl", "oc", "lxc", "incus", "machinectl"), ("exec", "run", "shell")),
    **dict.fromkeys(("limactl", "multipass"), ("shell", "exec")),
    **dict.fromkeys(("bwrap", "chroot", "ch-run", "flatpak-spawn", "shifter", "proot", "systemd-nspawn"), ()),
    **dict.fromkeys(("distrobox-enter", "lxc-attach", "nsenter", "run-singularity", "x11docker"), ()),
    **dict.fromkeys(("schroot", "dchroot", "arch-chroot", "lima"), ()),
}
# Options by which others do: srun's (enroot), unshare's, Guix's.
CONTAINER_OPTIONS = {
    **dict.fromkeys(("srun", "sbatch", "salloc"), ("--container-image", "--container-name")),
    "unshare": ("--root", "-R"),
    "guix": ("--container", "-C"),
}
# What goes into a container with the environment of the process that enters it, unless one of the words is there.
INHERITS = {
    **dict.fromkeys(("apptainer", "singularity"), ("--cleanenv", "-e", "--containall", "-C")),
    "bwrap": ("--clearenv",),
    **dict.fromkeys(("chroot", "ch-run", "shifter", "proot", "srun", "unshare", "nsenter"), ()),
}
KNOWN = frozenset(
    (*SHELLS, *CONTAINERS, *CONTAINER_OPTIONS, *CLEANS, *CLEARING, *REMOTE, "systemd-run", "env")
)


class Command:
    """A kernel's command, followed to its end.

    `programs` are the programs that it runs, by path; `obstacle` says why the shim does not reach the kernel, None if
    it seems to.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], library: Path):
        """`library` is the shim, `env` the environment that the command gets."""
        self.programs: list[str] = []
        self.obstacle: str | None = None
        self._env = env
        self._library = library
        self._follow(list(argv), 0)

    def _follow(self, words: list[str], depth: int) -> None:
        while words and ASSIGNMENT.match(words[0]):
            self._assign(words[0], words[0])
            words = words[1:]
        if not words or depth > DEPTH_MAX:
            return
        name = os.path.basename(words[0])
        program = self._which(words[0])
        if program is not None and program not in self.programs:
            self.programs.append(program)
        if name in CLEANS or (program is not None and _is_privileged(program)):
            self._object(f"its command runs `{name}`, which does not pass LD_PRELOAD on")
        elif name in REMOTE:
            self._object(
                f"its command runs the kernel on another machine (`{name}`), without the shim's LD_PRELOAD"
            )
        elif shown := _clears(name, words, self._env):
            self._object(
                f"its command runs `{shown}`, which does not pass LD_PRELOAD on: have it pass LD_PRELOAD and the"
                " AFFINODE_ variables"
            )
        elif name == "env":
            self._follow_env(words[1:], depth)
        elif name in SHELLS:
            self._follow_shell(words[1:], depth)
        elif _enters_container(name, words):
            self._judge_container(name, words)
        elif not INTERPRETER.match(name):
            self._follow_script(program, words, depth)
            self._follow_arguments(words[1:], depth)

    def _which(self, word: str) -> str | None:
        return shutil.which(word, path=self._env.get("PATH"))

    def _object(self, reason: str) -> None:
        self.obstacle = self.obstacle or reason

    def _drops(self, shown: str) -> None:
        self._object(
            f"its command has `{shown}`, which drops LD_PRELOAD; take that out of the kernelspec's argv, and name what"
            ' the kernel needs in the kernelspec\'s "env"'
        )

    def _assign(self, assignment: str, shown: str) -> None:
        """Object to a value of LD_PRELOAD, or a switch, that leaves the shim out."""
        name, _, value = assignment.partition("=")
        # a variable may have what was there before, as fakeroot's
        keeps = name.endswith("+") or SHIM_NAME.removesuffix(".so") in value or "$" in value
        if name.rstrip("+") == PRELOAD and not keeps:
            self._drops(shown)

    def _follow_env(self, words: list[str], depth: int) -> None:
        """env(1): its options, its assignments, the command."""
        long = ["ignore-environment", "unset=", "chdir=", "argv0=", "null", "debug", "list-signal-handling"]
        words = [word for word in words if not ENV_SIGNALS.match(word)]
        try:
            options, rest = getopt.getopt(_split_strings(words), "i0vu:C:a:", long)
        except (getopt.GetoptError, ValueError):  # an option that is not known here
            return self._follow_arguments(words, depth)
        for option, value in options:
            if option in ("-i", "--ignore-environment") or (option in ("-u", "--unset") and value == PRELOAD):
                self._clear_or_keep(f"env {option} {value}".rstrip(), rest)
        if rest[:1] == ["-"]:
            self._clear_or_keep("env -", rest[1:])
            rest = rest[1:]
        for word in rest:
            if not ASSIGNMENT.match(word):
                break
            self._assign(word, f"env {word}")
        self._follow(rest, depth + 1)

    def _clear_or_keep(self, shown: str, rest: list[str]) -> None:
        """Object to a cleared environment, unless an assignment behind it names the shim."""
        for word in rest:
            if not ASSIGNMENT.match(word):
                break
            if word.startswith(f"{PRELOAD}=") and SHIM_NAME in word:
                return
        self._drops(shown)

    def _follow_shell(self, words: list[str], depth: int) -> None:
        """A shell: the text of its option -c, or a script."""
        for index, word in enumerate(words):
            if not word.startswith(("-", "+")):
                script = self._read_script(self._which(word) or word)
                return self._follow_text(script, words[index:], depth)
            if word.startswith("-") and not word.startswith("--") and "c" in word:
                rest = words[index + 1 :]
                while rest and rest[0].startswith(("-", "+")) and len(rest) > 1:
                    rest = rest[1:]
                return self._follow_text(rest[0] if rest else "", rest[1:], depth)
        return None

    def _follow_script(self, program: str | None, words: list[str], depth: int) -> None:
        """A file that begins with #! is run by the command in that line."""
        text = self._read_script(program) if program is not None else ""
        if not text.startswith("#!"):
            return
        line = text.splitlines()[0][2:].strip().split(None, 1)
        if line and program is not None:
            self._follow([*line, program, *words[1:]], depth + 1)

    def _read_script(self, path: str | None) -> str:
        with contextlib.suppress(OSError, ValueError):
            with open(path or "", "rb") as file:
                head = file.read(SCRIPT_MAX_BYTES)
            return head.decode() if b"\0" not in head else ""
        return ""

    def _follow_text(self, text: str, arguments: list[str], depth: int) -> None:
        """A shell's text: what changes the environment for good, and the commands that may be the kernel.

        `arguments` are $0, $1 … A command in front of these that changes its own environment alone is none of ours.
        """
        commands = list(_simple_commands(text, arguments))
        kernels = [words for words, given in commands if given or words[0] == "exec"]
        for words, _ in commands:
            if words[0] in ("unset", "unsetenv") and PRELOAD in words[1:]:
                self._drops(f"{words[0]} LD_PRELOAD")
            elif words[0] in ("setenv", "set") and PRELOAD in words[1:]:  # csh's and fish's; `set -e` erases
                value = " ".join(words[words.index(PRELOAD) + 1 :])
                self._assign(f"{PRELOAD}={value}", " ".join(words))
            elif words[0] in ("export", "declare", "typeset") and "-n" in words[1:] and PRELOAD in words:
                self._drops("export -n LD_PRELOAD")
            elif words[0] in ("export", "declare", "typeset") or all(map(ASSIGNMENT.match, words)):
                for word in filter(ASSIGNMENT.match, words):
                    self._assign(word, word)
        for words in kernels or [words for words, _ in commands[-1:]]:
            if words[0] == "exec" and any(word.startswith("-") and "c" in word for word in words[1:2]):
                self._drops("exec -c")
            self._follow(words, depth + 1)

    def _follow_arguments(self, words: list[str], depth: int) -> None:
        """Follow the first argument that is a program, as with nice, taskset, srun, conda run."""
        for index, word in enumerate(words):
            if "run" in words[:index] and words[index - 1] in ENVIRONMENT_OPTIONS:
                continue  # conda's, or pixi's
            known = os.path.basename(word) in KNOWN
            if word and not word.startswith("-") and (known or self._which(word)):
                return self._follow(words[index:], depth + 1)
        return None

    def _judge_container(self, name: str, words: list[str]) -> None:
        clears = INHERITS.get(name)
        keeps = clears is not None and not any(word in clears for word in words)
        passed = any(
            re.search(rf"(^|[=,]|^-e){PRELOAD}(=|$)", word) or word == "--env-host" for word in words
        )
        if self._is_bound(name, words) and (keeps or passed):
            return
        folders = [PACKAGE] if PACKAGE in self._library.parents else [self._library.parent, PACKAGE]
        bind = " and ".join(map(str, folders))
        self._object(
            f"its command enters a container (`{name}`) that does not get the shim: bind {bind}"
            f" to the same path in it{'' if keeps else ', and pass LD_PRELOAD and the AFFINODE_ variables on'}"
        )

    def _is_bound(self, name: str, words: list[str]) -> bool:
        """Whether the shim is at the same path in the container."""
        if name == "chroot":
            roots = [word for word in words[1:] if word.startswith("/")]
            return bool(roots) and Path(roots[0] + str(self._library)).exists()
        return shows(name, words, self._env, self._library)


def _is_privileged(program: str) -> bool:
    """Whether the loader takes LD_PRELOAD out of a program's environment: it runs as another user or group."""
    try:
        status = os.stat(program)
    except OSError:
        return False
    as_user = bool(status.st_mode & stat.S_ISUID) and status.st_uid != os.getuid()
    return as_user or (bool(status.st_mode & stat.S_ISGID) and status.st_gid != os.getgid())


def _clears(name: str, words: list[str], env: Mapping[str, str]) -> str | None:
    """Return the words by which a program starts another without our LD_PRELOAD; None if it passes that on."""
    if name == "srun":
        exported = env.get("SLURM_EXPORT_ENV", "ALL")
        for index, word in enumerate(words):
            if word.partition("=")[0] == "--export":
                exported = word.partition("=")[2] or "".join(words[index + 1 : index + 2])
        names = exported.split(",")
        return None if "ALL" in names or PRELOAD in names else f"srun --export={exported}"
    if any(PRELOAD in word for word in words[1:]):
        return None
    if name == "systemd-run":  # a scope is run by systemd-run itself, a unit by the service manager
        return None if "--scope" in words else name
    option = next((word for word in _own_options(words) if word in CLEARING.get(name, ())), None)
    return f"{name} {option}" if option else None


def _own_options(words: list[str]) -> Iterator[str]:
    """Return the words between a program and the command that it runs."""
    for word in words[1:]:
        if word in ("--", "-c", "--command", "--run") or INTERPRETER.match(os.path.basename(word)):
            return
        yield word


def _enters_container(name: str, words: list[str]) -> bool:
    if name in CONTAINER_OPTIONS:
        return any(
            word == option or word.startswith(f"{option}=")
            for word in _own_options(words)
            for option in CONTAINER_OPTIONS[name]
        )
    commands = CONTAINERS.get(name)
    return commands is not None and (not commands or any(word in commands for word in words[1:]))


def _split_strings(words: list[str]) -> list[str]:
    """Return env(1)'s arguments with those of -S taken apart."""
    for index, word in enumerate(words):
        if not word.startswith("-"):
            break
        option = re.match(r"(-[iv0]*)S|--split-string=?", word)
        if option:
            value, after = word[option.end() :], index + 1
            if not value:
                value, after = "".join(words[after : after + 1]), after + 1
            flags = [option[1]] if (option[1] or "-") != "-" else []
            return [*words[:index], *flags, *shlex.split(value), *words[after:]]
    return words


def _simple_commands(text: str, arguments: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Return each simple command of a shell's text, with whether it has an argument of the shell's in it.

    Words have lost their quotes, redirections are left out. Nothing comes of a text that cannot be read.
    """
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.commenters = ""
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return
    words: list[str] = []
    given = skips = False
    for token in [*tokens, ";"]:
        if token and all(mark in "();|&\n" for mark in token):
            if words:
                yield words, given
            words, given, skips = [], False, False
        elif token and all(mark in "<>&|" for mark in token):
            skips = True
        elif skips:
            skips = False
        elif token in ("$@", "$*", "${@}"):
            words, given = [*words, *arguments[1:]], True
        elif re.fullmatch(r"\$\{?\d\}?", token):
            at = int(token.strip("${}"))
            words, given = [*words, *arguments[at : at + 1]], True
        elif words or token not in SHELL_WORDS:
            words.append(token)
