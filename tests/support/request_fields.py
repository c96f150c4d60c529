"""Arguments of requests that only pyfuse3's own code can make, with the fields that handlers read."""

from dataclasses import dataclass
from typing import cast

from pyfuse3 import RequestContext


@dataclass(frozen=True, slots=True)
class Context:
    """As a RequestContext."""

    uid: int = 0
    gid: int = 0
    pid: int = 1
    umask: int = 0


@dataclass(frozen=True, slots=True)
class ChangedFields:
    """As a SetattrFields."""

    update_size: bool = False
    update_mode: bool = False
    update_uid: bool = False
    update_gid: bool = False
    update_atime: bool = False
    update_mtime: bool = False
    update_ctime: bool = False


CONTEXT = cast(RequestContext, Context())
