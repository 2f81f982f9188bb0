"""One job on three hosts, started by torchrun (on one host: without it): what node caches, a cluster tier and affinity save.

python -m demo.cluster [--gigabytes 0.3] [--epochs 3] [--rate 100mbps] [--batch 64] [--step 0.005] [--json FILE]

The hosts are namespaces, which need root. Without root, all parts run on one host and talk over loopback. tc gives the
link of the storage its rate. Where there is no tc, a proxy of TCP does, and takes processor time. Needs redis-server
and versitygw. `make demo-cluster` installs them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draw_results import epochs, svg

from demo.hosts import TOOLS, Host, Hosts, Loopback, LoopbackHost, Program
from demo.report import aligned

ROOT = Path(__file__).resolve().parents[1]
PROGRAM, VERSITYGW = ROOT / "bin" / "stocached", ROOT / ".tools" / "versitygw"
HOSTS = 3
SAMPLE = 110 * 1024  # bytes
KEYS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret"}
UNITS = {"bps": 1, "kbps": 10**3, "mbps": 10**6, "gbps": 10**9, "kbit": 10**3 / 8, "mbit": 10**6 / 8, "gbit": 10**9 / 8}
SECONDS = 120  # the most that a part takes to start or end
ENDLESS = 1000  # epochs: the job that loses a host must not end before


@dataclass(frozen=True)
class Setting:
    title: str
    part: float  # part of the dataset that each node's cache holds
    tier: bool = False
    affinity: bool = False


SETTINGS = (
    Setting("no cache", 0),
    Setting("node caches", 1 / HOSTS),
    Setting("+ cluster tier", 1 / HOSTS, tier=True),
    Setting("node caches + affinity", 1 / HOSTS, affinity=True),
    Setting("+ cluster tier + affinity", 1 / HOSTS, tier=True, affinity=True),
)


@dataclass
class Epoch:
    number: int
    seconds: float
    hits: float  # part of the reads
    storage: float  # bytes that the storage sent, as a part of the dataset
    tier: float  # bytes that the tier gave, likewise
    note: str = ""


@dataclass
class Result:
    setting: Setting
    epochs: list[Epoch] = field(default_factory=list)


class Demo:
    def __init__(self, arguments: argparse.Namespace, folder: Path, hosts: Hosts | Loopback) -> None:
        self.arguments, self.folder, self.hosts = arguments, folder, hosts
        self.batch = arguments.batch
        self.jobs = 0  # jobs that were started
        self.samples = round(arguments.gigabytes * 1e9 / SAMPLE / (HOSTS * self.batch)) * HOSTS * self.batch
        self.bytes = self.samples * SAMPLE
        self.at = f"{hosts.storage.address}:7070"  # address of the storage, for the servers

    # ------------------------------------------------------------ the parts

    def start_storage(self) -> None:
        bucket = self.folder / "storage" / "photos"
        bucket.mkdir(parents=True)
        with open(bucket / "records.bin", "wb") as file:
            for _ in range(self.samples):
                file.write(os.urandom(SAMPLE))
        keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        own, log = self.at, self.folder / "storage.log"
        if not self.hosts.shaped:
            own = f"{self.hosts.storage.address}:7071"
            command = [sys.executable, "-m", "demo.link", bytes_a_second(self.arguments.rate), self.at, own]
            link = self.hosts.storage.run(command, {"PYTHONPATH": str(ROOT)}, output=subprocess.PIPE, log=log)
            assert link.stdout is not None
            if link.stdout.readline() != "listening\n":
                raise RuntimeError(f"the proxy does not start: {log.read_text()}")
        self.hosts.storage.run([VERSITYGW, "--port", own, "--quiet", "posix", bucket.parent], keys, log=log)

    def start_engine(self, host: Host) -> None:
        folder = self.folder / f"redis-{host.name}"
        folder.mkdir(exist_ok=True)
        (folder / "nodes.conf").unlink(missing_ok=True)
        memory = round(self.bytes / HOSTS * 1.3) + (32 << 20)
        options = {
            "bind": host.address, "port": 6379, "dir": folder, "save": "", "protected-mode": "no", "maxmemory": memory,
            "maxmemory-policy": "noeviction", "cluster-enabled": "yes", "cluster-require-full-coverage": "no",
            "cluster-node-timeout": 2000, "cluster-announce-ip": host.address,
        }  # fmt: skip
        host.run(
            ["redis-server", *(text for key, value in options.items() for text in (f"--{key}", value))],
            {},
            log=folder / "log",
        )

    def join_engines(self) -> None:
        """Makes one cluster of the engines."""
        addresses = [f"{host.address}:6379" for host in self.hosts.hosts]
        command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        for _ in range(SECONDS):
            if self.hosts.hosts[0].run(command, {}, log=self.folder / "redis-cli.log").wait(SECONDS) == 0:
                return
            time.sleep(0.2)
        raise RuntimeError(f"the engines make no cluster: {(self.folder / 'redis-cli.log').read_text()}")

    def start_server(self, host: Host, setting: Setting) -> None:
        """Starts the server of a host, and waits until it serves."""
        folder = self.folder / host.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        slots = max(round(self.samples * setting.part), 1)
        overhead = 4 * 2**20 + 40 * self.samples  # size of the control part
        cache: dict[str, Any] = {
            "name": "photos",
            "source": {"kind": "raw", "path": "s3://photos/records.bin", "sample_bytes": SAMPLE},
            "size": slots * SAMPLE + overhead,
            "parallel": 16,
        }
        if isinstance(self.hosts, Loopback):
            cache["dir"] = str(host.memory)
        if setting.tier:
            cache["tiers"] = [{"kind": "cluster", "addresses": [f"{one.address}:6379" for one in self.hosts.hosts]}]
        config = folder / "serve.yaml"
        config.write_text(json.dumps({"caches": [cache], "sockets": {"dir": str(folder / "run")}}))
        log = folder / "log"
        keys = KEYS | {"AWS_ENDPOINT_URL": f"http://{self.at}"}
        server = host.run([PROGRAM, "serve", "-c", config], keys, output=subprocess.PIPE, log=log)
        assert server.stdout is not None
        if not server.stdout.readline().startswith("serving"):
            raise RuntimeError(f"the server of {host.name} does not start: {log.read_text()}")

    def sent(self) -> int:
        """Bytes that the storage has sent so far: to the servers that run now, if no link counts them."""
        if isinstance(self.hosts, Hosts):
            return self.hosts.sent()
        return sum((find(self.stats(host), "remote") or {"bytes": 0})["bytes"] for host in self.hosts.hosts)

    def tier_bytes(self, host: Host) -> int:
        return sum(one["hit_bytes"] for one in find(self.stats(host), "tiers") or [])

    def stats(self, host: Host) -> Any:
        command = [
            PROGRAM,
            "stats",
            "photos",
            "--json",
            "--dir",
            host.memory,
            "--sockets",
            self.folder / host.name / "run",
        ]
        shown = host.run(command, {}, output=subprocess.PIPE, log=self.folder / "stats.log")
        return json.loads(shown.communicate(timeout=SECONDS)[0])

    # ------------------------------------------------------------ a job

    def start_ranks(self, setting: Setting, epochs: int) -> list[Program]:
        ranks: list[Program] = []
        self.jobs += 1
        meeting = f"file://{self.folder / f'ranks-{self.jobs}'}" if isinstance(self.hosts, Loopback) else "env://"
        port = 0 if isinstance(self.hosts, Loopback) else self.free_port()
        for rank, host in enumerate(self.hosts.hosts):
            environment = {
                "STOCACHED_NODE": host.name, "STOCACHED_SOCKETS_DIR": str(self.folder / host.name / "run"), "GLOO_SOCKET_IFNAME": self.hosts.interface,
                "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            }  # fmt: skip
            settings = {
                "cache": "photos", "batch": self.batch, "epochs": epochs, "step": self.arguments.step,
                "affinity": setting.affinity, "state": str(self.folder / "state.json"), "meeting": meeting,
            }  # fmt: skip
            torchrun = {
                "nnodes": HOSTS, "nproc-per-node": 1, "node-rank": rank, "master-addr": self.hosts.hosts[0].address,
                "master-port": port,
            }  # fmt: skip
            log = self.folder / f"rank{rank}.log"
            if isinstance(host, LoopbackHost):  # without torchrun, which imports torch a second time for each rank
                environment |= {
                    "RANK": str(rank), "WORLD_SIZE": str(HOSTS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                }  # fmt: skip
                ranks.append(host.start(ROOT / "demo/cluster_rank.py", [json.dumps(settings)], environment, log))
            else:
                options = [f"--{key}={value}" for key, value in torchrun.items()]
                program = ["-m", "torch.distributed.run", *options, "-m", "demo.cluster_rank", json.dumps(settings)]
                command = [sys.executable, *program]
                ranks.append(host.run(command, environment, output=subprocess.PIPE, log=log))
        return ranks

    def free_port(self) -> int:
        """A port of the first host for the ranks to meet. Each job has its own: the socket of the one before may linger."""
        host = self.hosts.hosts[0]
        code = f"import socket; s = socket.socket(); s.bind(({host.address!r}, 0)); print(s.getsockname()[1])"
        shown = host.run([sys.executable, "-c", code], {}, output=subprocess.PIPE, log=self.folder / "port.log")
        return int(shown.communicate(timeout=SECONDS)[0])

    def read_epochs(self, ranks: list[Program], result: Result, epochs: int) -> None:
        sent = self.sent()
        tier = sum(map(self.tier_bytes, self.hosts.hosts)) if result.setting.tier else 0
        for _ in range(epochs):
            lines = []
            for number, rank in enumerate(ranks):
                assert rank.stdout is not None
                line = rank.stdout.readline()
                if not line:
                    raise RuntimeError(
                        f"rank {number} has ended: {(self.folder / f'rank{number}.log').read_text()[-2000:]}"
                    )
                lines.append(json.loads(line))
            now = self.sent()
            given = sum(map(self.tier_bytes, self.hosts.hosts)) if result.setting.tier else 0
            reads = sum(line["samples"] for line in lines)
            epoch = Epoch(
                lines[0]["epoch"], max(line["seconds"] for line in lines), sum(line["hits"] for line in lines) / max(reads, 1),
                (now - sent) / self.bytes, (given - tier) / self.bytes,
            )  # fmt: skip
            sent, tier = now, given
            result.epochs.append(epoch)

    def run(self, setting: Setting) -> Result:
        result = Result(setting)
        (self.folder / "state.json").unlink(missing_ok=True)
        for host in self.hosts.hosts:
            self.boot(host, setting)
        if setting.tier:
            self.join_engines()
        ranks = self.start_ranks(setting, self.arguments.epochs)
        self.read_epochs(ranks, result, self.arguments.epochs)
        for rank in ranks:
            rank.wait(SECONDS)
        if setting == SETTINGS[-1]:
            self.lose_a_host(setting, result)
        for host in self.hosts.hosts:
            host.kill()
            host.boot()
        return result

    def boot(self, host: Host, setting: Setting) -> None:
        if setting.tier:
            self.start_engine(host)
        self.start_server(host, setting)

    def lose_a_host(self, setting: Setting, result: Result) -> None:
        """In the middle of an epoch the last host loses power. It comes back empty, and the job continues from its
        checkpoint."""
        state, lost = self.folder / "state.json", self.hosts.hosts[-1]
        before = state.read_text()
        ranks = self.start_ranks(setting, self.arguments.epochs + ENDLESS)
        end = time.monotonic() + SECONDS
        while state.read_text() == before:
            if time.monotonic() > end:
                raise RuntimeError("the job writes no checkpoint")
            time.sleep(0.01)
        lost.kill()
        for rank in ranks[:-1]:
            rank.terminate()  # torchrun, if there is one, ends its rank, too
            rank.wait(SECONDS)
        saved = json.loads(state.read_text())
        position = saved["position"]
        lost.boot()
        self.boot(lost, setting)
        self.read_epochs(self.start_ranks(setting, saved["epoch"] + 1), result, 1)
        result.epochs[-1].note = f"a host was lost at sample {position:,} of {self.samples:,}, and is back empty"


def find(value: Any, key: str) -> Any:
    """The first value of a key, anywhere in an object."""
    if isinstance(value, dict):
        return value[key] if key in value else next(filter(None, (find(one, key) for one in value.values())), None)
    if isinstance(value, list):
        return next(filter(None, (find(one, key) for one in value)), None)
    return None


def table(results: list[Result]) -> str:
    rows = [("setting", "epoch", "seconds", "local hits", "from storage", "from the tier", "")]
    for result in results:
        for epoch in result.epochs:
            rows.append(
                (
                    result.setting.title, str(epoch.number), f"{epoch.seconds:.1f}", f"{epoch.hits:.1%}", f"{epoch.storage:.3f}",
                    f"{epoch.tier:.3f}", epoch.note,
                )
            )  # fmt: skip
    return "\n".join(aligned(rows))


def bytes_a_second(rate: str) -> float:
    """A rate as tc writes it."""
    parts = re.fullmatch(r"([\d.]+)([a-z]+)", rate)
    if parts is None or parts[2] not in UNITS:
        raise SystemExit(f"--rate {rate}: write a number and one of {', '.join(UNITS)}, such as 100mbps")
    return float(parts[1]) * UNITS[parts[2]]


def draw(results: list[Result], about: str, path: Path) -> None:
    """The last whole epoch of each setting, in a picture as those of the documents."""
    last = [[epoch for epoch in result.epochs if not epoch.note][-1] for result in results]
    figures = [(epoch.seconds, epoch.storage, epoch.tier, epoch.hits) for epoch in last]
    panels = epochs([result.setting.title for result in results], figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg("One job on three hosts: an epoch", about, panels))


def missing(root: bool) -> list[str]:
    """What the demo needs and does not find."""
    tools = (*(TOOLS if root else ()), "redis-server", "redis-cli")
    lacks = [tool for tool in tools if shutil.which(tool) is None]
    return lacks + [str(path.relative_to(ROOT)) for path in (PROGRAM, VERSITYGW) if not path.exists()]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "demo.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--gigabytes", type=float, default=0.3, help="of the dataset (10^9 bytes)")
    made.add_argument("--epochs", type=int, default=3, help="of each setting")
    made.add_argument(
        "--rate", default="100mbps", help="of the storage's link, as tc writes it: mbps are megabytes a second"
    )
    made.add_argument("--batch", type=int, default=64, help="samples of a rank in a batch")
    made.add_argument("--step", type=float, default=0.005, help="seconds of a training step")
    made.add_argument("--settings", type=int, nargs="*", help="numbers of the settings to run, from 0 on; default: all")
    made.add_argument("--json", type=Path, help="a file for the results")
    made.add_argument(
        "--one-host", action="store_true", default=os.geteuid() != 0, help="no namespaces, as without root"
    )
    made.add_argument("--no-tc", action="store_true", help="a proxy gives the link its rate, as where there is no tc")
    made.add_argument(
        "--chart",
        type=Path,
        default=ROOT / "build/demo/cluster.svg",
        help="the picture (default: build/demo/cluster.svg)",
    )
    return made


def main(arguments: argparse.Namespace) -> int:
    one, rate = arguments.one_host, arguments.rate
    if lacks := missing(root=not one):
        way_out = "" if one else "; python -m demo.cluster --one-host needs no namespaces"
        print(f"demo-cluster needs {', '.join(lacks)}{way_out}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="stoc-", dir="/tmp"))  # sockets have short paths
    results = []
    bytes_a_second(rate)  # which ends the program if it is none
    shm = f"{round(arguments.gigabytes * 1e9 * 0.6) + (64 << 20)}"
    try:
        with Loopback(HOSTS) if one else Hosts(HOSTS, shm, rate, not arguments.no_tc) as hosts:
            demo = Demo(arguments, folder, hosts)
            if one:
                print(
                    "one host, without what needs root: no namespaces, no tc. The three hosts are three servers of "
                    "this one, over loopback. They share its processors and its kernel, so seconds say less than with root.",
                    flush=True,
                )
            by = "tc tbf" if hosts.shaped else "a TCP proxy in place of tc"
            about = f"{demo.samples:,} samples of {SAMPLE:,} bytes; storage behind a link of {rate} ({by})"
            print(
                f"{about}; it is versitygw; {arguments.batch} samples a rank, a step of {arguments.step * 1000:.0f} ms",
                flush=True,
            )
            demo.start_storage()
            for number, setting in enumerate(SETTINGS):
                if arguments.settings is None or number in arguments.settings:
                    results.append(demo.run(setting))
                    print(table(results[-1:]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{about}\n{table(results)}")
    print("from storage, from the tier: bytes as a part of the dataset")
    if results:
        draw(results, about, arguments.chart)
        print(f"chart: {arguments.chart}")
    if arguments.json:
        rows = [{"setting": result.setting.title, **vars(epoch)} for result in results for epoch in result.epochs]
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
