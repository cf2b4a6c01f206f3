//! The script that puts libtpu on a host, with the pip of this machine: it takes wheels from a
//! folder, or from an index on this machine. Without pip, these tests are skipped.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use super::libtpu::Stage;
use crate::libtpu::Source;
use crate::libtpu_wheel::LibtpuWheel;

/// Writes wheels of libtpu for several Pythons, of which only one has the library, and prints where
/// the library is in it, the size of what is compressed, and the checksum.
const WHEELS: &str = r#"
import sys, zipfile
folder, library, version = sys.argv[1:]
# The host's Python does not matter, and nothing else is downloaded.
metadata = "Metadata-Version: 2.1\nName: libtpu\nRequires-Python: >=3.99\nRequires-Dist: not-in-the-index\n"
for tag in ["cp312-cp312", "cp313-cp313", "cp313-cp313t", "cp314-cp314"]:
    tag += "-manylinux_2_31_x86_64"
    info = f"libtpu-{version}.dist-info"
    content = open(library, "rb").read() if tag.startswith("cp313-cp313-") else tag.encode()
    with zipfile.ZipFile(f"{folder}/libtpu-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("libtpu/__init__.py", "")
        wheel.writestr("libtpu/libtpu.so", content)
        wheel.writestr(f"{info}/METADATA", f"{metadata}Version: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
        member = wheel.getinfo("libtpu/libtpu.so")
    if tag.startswith("cp313-cp313-"):
        print(member.header_offset + 30 + len(member.filename), member.compress_size, member.CRC)
"#;

/// What the index does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The package is unknown.
    Missing,
    /// The files have another hash than the index says.
    Hash,
    /// The connection ends in the middle of a file.
    Cut,
}

/// The Python of this machine, if it has pip.
fn python() -> Option<String> {
    let program = "import sys, pip, hashlib, zipfile; print(sys.executable)";
    let output = Command::new("python3").args(["-c", program]).output().ok()?;
    if !output.status.success() {
        eprintln!("skipped: this machine has no python3 with pip");
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A host whose description of the wheel has the arguments of the published one.
fn stage(python: &str) -> Stage {
    let mut stage = Stage::new();
    let wheels = stage.path("wheels");
    fs::create_dir(&wheels).unwrap();
    let library = stage.path("library");
    fs::write(&library, &stage.library).unwrap();
    let tested = LibtpuWheel::tested();
    let output = Command::new(python)
        .args(["-c", WHEELS])
        .args([&wheels, &library])
        .arg(&tested.version)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [offset, compressed_bytes, crc32] = numbers[..] else { panic!("{text}") };
    let wheel = &mut stage.libtpu.wheel;
    wheel.offset = offset;
    wheel.compressed_bytes = compressed_bytes;
    wheel.crc32 = u32::try_from(crc32).unwrap();
    wheel.pip_arguments = tested.pip_arguments;
    assert_eq!(wheel.version, tested.version, "the folder of the stage has this version");
    stage
}

/// Lets the host's Python be this machine's, with pip's settings from these variables only.
fn use_pip(stage: &Stage, python: &str, settings: &str) {
    let script = format!("exec env PIP_CONFIG_FILE=/dev/null {settings} '{python}' \"$@\"");
    stage.program("python3", &script);
}

/// Serves the wheels of a folder as an index for pip. Returns its address.
fn index(wheels: PathBuf, fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/simple", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client may cut its connection.
            let _ = stream.and_then(|stream| answer(stream, &wheels, fault));
        }
    });
    address
}

fn answer(mut stream: TcpStream, wheels: &Path, fault: Fault) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let content = if path == "/simple/libtpu/" && fault != Fault::Missing {
        Some(list(wheels, fault).into_bytes())
    } else {
        let name = path.strip_prefix("/files/").unwrap_or("none");
        fs::read(wheels.join(name)).ok()
    };
    let status = if content.is_some() { "200 OK" } else { "404 Not Found" };
    let kind = if path.ends_with('/') { "text/html" } else { "application/octet-stream" };
    let content = content.unwrap_or_default();
    let is_cut = fault == Fault::Cut && path.starts_with("/files/");
    let sent = if is_cut { &content[..content.len() / 2] } else { &content };
    let length = content.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(sent)
}

/// The page of the package, with the hash of each file.
fn list(wheels: &Path, fault: Fault) -> String {
    let mut page = "<!DOCTYPE html><html><body>\n".to_owned();
    for entry in fs::read_dir(wheels).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let output = Command::new("sha256sum").arg(&path).output().unwrap();
        let sum = String::from_utf8(output.stdout).unwrap()[..64].to_owned();
        let sum = if fault == Fault::Hash { "0".repeat(64) } else { sum };
        page += &format!("<a href=\"/files/{name}#sha256={sum}\">{name}</a><br>\n");
    }
    page + "</body></html>\n"
}

#[test]
fn pip_takes_the_tested_wheel_from_a_folder() {
    let Some(python) = python() else { return };
    let stage = stage(&python);
    let folder = stage.path("wheels");
    use_pip(&stage, &python, &format!("PIP_NO_INDEX=1 PIP_FIND_LINKS='{}'", folder.display()));
    assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "downloaded");
    stage.has_library();

    // The folder has wheels for other Pythons only.
    fs::remove_file(stage.own()).unwrap();
    let version = &stage.libtpu.wheel.version;
    let right = format!("libtpu-{version}-cp313-cp313-manylinux_2_31_x86_64.whl");
    fs::remove_file(folder.join(right)).unwrap();
    let missing = stage.run(Source::Fetch, b"").unwrap().missing.unwrap();
    let expected = format!("No matching distribution found for libtpu=={version}");
    assert!(missing.starts_with("pip: ") && missing.contains(&expected), "{missing}");
    stage.has_no_leftovers();
}

#[test]
fn pip_takes_the_tested_wheel_from_an_index() {
    let Some(python) = python() else { return };
    let stage = stage(&python);
    let address = index(stage.path("wheels"), Fault::None);
    use_pip(&stage, &python, &format!("PIP_NO_PROXY='*' NO_PROXY='*' PIP_INDEX_URL={address}"));
    assert_eq!(stage.run(Source::Alone, b"").unwrap().state, "downloaded");
    stage.has_library();
    assert_eq!(stage.run(Source::Alone, b"").unwrap().state, "present");
}

#[test]
fn why_pip_has_no_wheel_is_named() {
    let Some(python) = python() else { return };
    let stage = stage(&python);
    let reason = |address: &str| {
        use_pip(&stage, &python, &format!("NO_PROXY='*' PIP_INDEX_URL={address}"));
        let missing = stage.run(Source::Fetch, b"").unwrap().missing.unwrap();
        assert!(!stage.own().exists());
        stage.has_no_leftovers();
        missing
    };
    let unknown = reason(&index(stage.path("wheels"), Fault::Missing));
    assert!(unknown.contains("No matching distribution found for libtpu=="), "{unknown}");
    let other = reason(&index(stage.path("wheels"), Fault::Hash));
    assert!(
        other.contains("is not the file that pip's index describes: its SHA-256 is "),
        "{other}"
    );
    assert!(other.ends_with(&format!(", not {}", "0".repeat(64))), "{other}");
    // The words depend on pip's version.
    let cut = reason(&index(stage.path("wheels"), Fault::Cut));
    assert!(cut.contains("the download was cut short, or ") || cut.starts_with("pip: "), "{cut}");
    assert!(!cut.contains("Got "), "{cut}");
    // Nobody listens on port 1.
    let refused = reason("http://127.0.0.1:1/simple");
    assert!(refused.starts_with("pip did not reach its index: "), "{refused}");
    assert!(refused.ends_with("Connection refused"), "{refused}");
}
