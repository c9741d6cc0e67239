# SPDX-License-Identifier: GPL-3.0-or-later
"""Emulated TPMs, where the guest's kernel has the proxy and its root has swtpm: with the distribution's kernel."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from ctrmgr.host import tpm
from tests.lab.commands import ctr, host, info, sh

KEY = "0x81000001"
PCR = "tpm2_pcrread sha256:16 | tail -1 | tr -d ' '"
ZERO = f"16:0x{'0' * 64}"
LAUNCH = ("launch", "builtin:busybox", "m1", "-p", "no-network")
GIVEN = ("-d", "t,type=tpm,gid=7,mode=0660")
PROFILE = "profile swtpm /usr/bin/swtpm { /usr/** mr, /etc/** r, deny /run/** rwl, deny /var/** rwl, }\n"


def tools() -> list[str]:
    """The guest's programs as devices of an instance, which has none for a TPM."""
    folders = {"/usr": "/usr", "/usr/lib": "/lib", "/usr/lib64": "/lib64", "/etc": "/etc/host"}
    found = []
    for number, (source, path) in enumerate(folders.items()):
        found += ["-d", f"d{number},type=disk,source={source},path={path},readonly=true"]
    return found


def nodes() -> list[str]:
    return sorted(name for name in os.listdir("/dev") if name.startswith("tpm"))


def programs() -> list[str]:
    return host("sh", "-c", "ps -eo args | grep '[s]wtpm chardev' || true").splitlines()


def a_tpm_of_its_own() -> None:
    """Made, used, kept, copied, taken away."""
    if subprocess.run(["modprobe", "tpm_vtpm_proxy"], capture_output=True).returncode or not tpm.emulator():
        refused = ctr(*LAUNCH, *GIVEN, code=5).stderr
        assert tpm.missing()[0] in refused and "no emulated TPMs" in ctr("doctor", code=None).stdout, refused
        return
    _under_apparmor()
    assert "emulated by `/usr/bin/swtpm`" in ctr("doctor", code=None).stdout
    ctr(*LAUNCH, *GIVEN, *tools())
    assert nodes() == ["tpm0", "tpmrm0"] and len(programs()) == 1
    assert [sh(f"stat -c '%a %u %g' {path}", name="m1") for path in ("/dev/tpm0", "/dev/tpmrm0")] == ["660 0 7"] * 2
    assert [each["state"] for each in info("m1")["tpms"]] == ["running"]  # type: ignore[attr-defined]
    used = "export TPM2TOOLS_TCTI=device:/dev/tpmrm0; cd /tmp || exit; "
    assert sh(f"{used} {PCR}", name="m1") == ZERO
    sh(
        f"{used} tpm2_pcrextend 16:sha256={'ab' * 32}; tpm2_createprimary -Q -C o -c key; tpm2_evictcontrol -Q -C o -c key {KEY}",
        name="m1",
    )
    assert sh(f"{used} {PCR}", name="m1") != ZERO
    public = sh(f"{used} tpm2_readpublic -c {KEY} | grep ^name:", name="m1")
    assert sh(f"{used} tpm2_getcap handles-persistent", name="m1") == f"- {KEY}"
    assert sh("exec 3<>/dev/tpm0; (exec 4<>/dev/tpm0) 2>&1 | tail -1", name="m1").endswith("busy")

    ctr("snapshot", "create", "m1", "s")
    ctr("restart", "m1", "--force")
    assert (sh(f"{used} {PCR}", name="m1"), nodes()) == (ZERO, ["tpm0", "tpmrm0"])
    assert sh(f"{used} tpm2_readpublic -c {KEY} | grep ^name:", name="m1") == public
    sh(f"{used} tpm2_clear -Q", name="m1")
    assert sh(f"{used} tpm2_getcap handles-persistent", name="m1") == ""

    # taken while it is in use, by a process that keeps it open
    sh("(exec 3<>/dev/tpmrm0; sleep 600) >/dev/null 2>&1 </dev/null & sleep 0.2", name="m1")
    said = ctr("detach-device", "m1", "t").stderr
    assert "sleep" in said and nodes() == [] == programs(), said
    assert sh("ls /dev | grep tpm || true", name="m1") == ""
    ctr("attach-device", "m1", "t", "type=tpm", "path=/dev/tpm3", "pathrm=/dev/tpmrm3")
    assert sh("TPM2TOOLS_TCTI=device:/dev/tpmrm3 tpm2_getcap handles-persistent", name="m1") == ""
    ctr("stop", "m1", "--force")
    ctr("snapshot", "restore", "m1", "s")
    ctr("copy", "m1", "m2")
    for name in ("m1", "m2"):
        ctr("start", name)
        assert sh(f"{used} tpm2_readpublic -c {KEY} | grep ^name:", name=name) == public
    assert nodes() == ["tpm0", "tpm1", "tpmrm0", "tpmrm1"]
    listed = json.loads(ctr("device", "list", "unix-char", "--format", "json").stdout)
    held = {each["id"]: each for each in listed if "/tpm" in str(each["id"])}
    assert {each["model"] for each in held.values()} == {"emulated TPM 2.0"}, held
    assert [each["instance"] for each in held["/dev/tpmrm1"]["holders"]] == ["m2"], held
    os.kill(int(str(info("m2")["monitor-pid"])), 9)
    for _ in range(200):
        if len(nodes()) == 2:
            break  # without a command
        time.sleep(0.05)
    assert nodes() == ["tpm0", "tpmrm0"] and len(programs()) == 1
    for name in ("m1", "m2"):
        ctr("delete", "--force", name)
    assert nodes() == [] == programs()
    assert not os.listdir("/var/lib/ctrmgr/allocations")


def _under_apparmor() -> None:
    """As distributions do: a profile for swtpm that knows other folders."""
    path = Path("/tmp/swtpm.profile")
    path.write_text(PROFILE)
    subprocess.run(["apparmor_parser", "--replace", path], check=True)
