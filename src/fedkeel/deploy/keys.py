"""The folder `keys` of a deployment: the authority, the server's certificate, and the public keys of the sites."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy import identity
from fedkeel.errors import InputError, label, one_of, unknown


@dataclass(frozen=True)
class Keys:
    """Where they are."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate, which every site needs."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The authority's private key, which never leaves this folder."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    @property
    def nodes(self) -> Path:
        """The folder of the sites' public keys."""
        return self.folder / "nodes"

    def make(self, hosts: Sequence[str]) -> None:
        """What is missing of the authority and of the server's certificate, for machines of these names."""
        identity.check_installed()
        hosts = [*map(identity.machine, hosts)]
        identity.private_folder(self.folder)
        identity.private_folder(self.nodes)
        if not self.ca.exists():
            if self.server.exists():
                raise InputError(f"{self.ca} is missing; bring it back, or {self._all_anew()}")
            identity.make_authority(self.ca, self.ca_key)
        if not self.server.exists():
            self._check_authority()
            if not (self.ca_key.exists() and identity.fits(self.ca, self.ca_key)):
                raise InputError(
                    f"{self.ca_key} is missing, or is not the key of {self.ca.name} beside it; bring it back, or "
                    f"{self._all_anew()}"
                )
            identity.make_server(self.server, self.server_key, self.ca, self.ca_key, hosts)
        self.check(hosts)

    def check(self, hosts: Sequence[str] = ()) -> None:
        """That the certificates are there, valid, belong together, and are for these names."""
        for path in (self.ca, self.server):
            if not path.exists():
                raise InputError(f"{path} is missing; make it with {self._command()}")
        hosts = [*map(identity.machine, hosts)]
        self._check_authority()
        known = identity.names_of(self.server)
        anew = f"move {self.server.name} and {self.server_key.name} away and run {self._command(hosts)}"
        if not self.server_key.exists():
            raise InputError(f"{self.server_key} is missing; bring it back, or {anew}")
        if not identity.issued(self.server, self.ca):
            raise InputError(f"{self.server} was not issued by {self.ca.name} beside it; {anew}")
        if not identity.fits(self.server, self.server_key):
            raise InputError(f"{self.server_key} is not the key of {self.server.name} beside it; {anew}")
        identity.check_valid(self.server, anew)
        for host in hosts:
            if host not in known:
                raise InputError(f"host: {self.server} is for {one_of(known, 'and')}, not for {host}; {anew}")

    def _check_authority(self) -> None:
        identity.check_valid(self.ca, self._all_anew())

    def _all_anew(self) -> str:
        """What to do where the authority is of no use any more."""
        names = one_of([path.name for path in (self.ca, self.ca_key, self.server, self.server_key)], "and")
        return f"move {names} away, run {self._command()}, and send the new {self.ca.name} to every site"

    def _command(self, hosts: Sequence[str] = ()) -> str:
        """The command that makes what is missing, for the names of the certificate that is there, and for these."""
        known = identity.names_of(self.server) if self.server.exists() else []
        names = [name for name in dict.fromkeys((*known, *hosts)) if name not in identity.LOCAL]
        options = [word for name in names for word in ("--host", name)]
        return shlex.join(["fedkeel", "deploy", "keys", str(self.folder.parent), *options])

    def add(self, public: Path, sites: Sequence[str]) -> str:
        """Take over a site's public key, whose file is named after the site; returns that name."""
        name = public.name.removesuffix(".pub")
        if name not in sites:
            raise unknown("add", name, sites, what="site of deploy.yaml")
        text = identity.check_public(public)
        target = self.nodes / f"{name}.pub"
        if target.exists() and target.read_bytes() != text:
            raise InputError(f"{target} is another key of {name}; remove that file first if the site has a new one")
        identity.private_folder(self.nodes)
        identity.place(target, text)
        return name

    def enrolled(self, sites: Sequence[str]) -> dict[str, Path]:
        """The public keys of the sites that have one; refuses keys of others."""
        found = {path.stem: path for path in sorted(self.nodes.glob("*.pub"))}
        for name, path in found.items():
            if name not in sites:
                raise InputError(f"{path} is the key of no site; remove it, or add {label(name)} to deploy.yaml")
            identity.check_public(path)
        return found
