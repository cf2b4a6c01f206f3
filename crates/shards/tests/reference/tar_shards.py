"""Writes small tar shards with Python's tarfile and with webdataset, and what webdataset reads of them.

Made with Python 3.13, webdataset 1.0.2: python tar_shards.py (writes into tar_shards/ beside it).
"""

import gzip
import io
import json
import pathlib
import tarfile

import webdataset
from webdataset.tariterators import group_by_keys, tar_file_iterator

HERE = pathlib.Path(__file__).parent / "tar_shards"
LONG = "a-folder-with-a-long-name/" * 12 + "sample"
FILES = [
    ("./first.JPG", b"\xff\xd8 first"),
    ("./first.cls", b"0"),
    ("README", b"no extension: in no sample"),
    ("./first.seg.png", b"png" * 300),
    ("plain.txt", b""),
    (".hidden", b"hidden"),
    ("__meta__/of.json", b"{}"),
    (LONG + ".txt", b"long"),
    (LONG + ".cls", b"1"),
    ("folder.with.dots/key.cls", b"2"),
    ("folder.with.dots/k\u00e9y.cls", b"3"),
    ("b" * 98 + "/" + "c" * 90 + ".txt", b"fits with a prefix"),
    ("plain.txt", b"again, but not beside the other"),
]


def write(name, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for path, content in FILES:
            if options["format"] == tarfile.USTAR_FORMAT and path.startswith(LONG):
                continue
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            if path == "plain.txt":
                folder = tarfile.TarInfo("folder.x")
                folder.type = tarfile.DIRTYPE
                tar.addfile(folder)
                link = tarfile.TarInfo("link.txt")
                link.type = tarfile.SYMTYPE
                link.linkname = "target-" * 13
                tar.addfile(link)
    (HERE / name).write_bytes(buffer.getvalue())


def read(path):
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    files = ({**file, "__url__": ""} for file in tar_file_iterator(io.BytesIO(data)))
    samples = []
    for sample in group_by_keys(files):
        kept = {name: value.hex() for name, value in sample.items() if not name.startswith("__")}
        samples.append({"key": sample["__key__"], "files": kept})
    return samples


def main():
    assert webdataset.__version__ == "1.0.2", webdataset.__version__
    HERE.mkdir(exist_ok=True)
    write("gnu.tar", format=tarfile.GNU_FORMAT)
    write("pax.tar", format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all entries"})
    write("ustar.tar", format=tarfile.USTAR_FORMAT)
    # Two gzip members, as pigz and bgzip write them.
    whole = (HERE / "gnu.tar").read_bytes()
    packed = gzip.compress(whole[:5000], mtime=0) + gzip.compress(whole[5000:], mtime=0)
    (HERE / "packed.tar.gz").write_bytes(packed)
    with webdataset.TarWriter(str(HERE / "webdataset.tar"), mtime=0) as writer:
        for number in range(3):
            writer.write({"__key__": f"train/{number:04d}", "cls": number, "txt": f"sample {number}", "bin": bytes(number)})
    expected = {path.name: read(path) for path in sorted(HERE.glob("*.tar*"))}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
