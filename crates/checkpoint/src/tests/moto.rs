//! A real object store on loopback: `moto`, a package of Python's index. It implements S3's
//! interface, which Google's XML interface resembles. Without Python or the index, the test is
//! skipped with a message.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Packages installed once into a separate environment next to the build.
const PACKAGES: [&str; 3] = ["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"];

const INSTALL: Duration = Duration::from_secs(300);
const START: Duration = Duration::from_secs(120);

/// The server on a port. For Google's stores without authentication, the client sends a header
/// without a token, which `moto` cannot parse.
const SERVE: &str = r#"
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
moto = DomainDispatcherApplication(create_backend_app)
def serve(environ, start_response):
    if environ.get("HTTP_AUTHORIZATION", "").split() == ["Bearer"]:
        del environ["HTTP_AUTHORIZATION"]
    return moto(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True)
"#;

/// A server on loopback, which ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// A server for a test; `None` if it cannot start, which is an error if the environment
    /// requires one.
    pub(crate) fn for_test(test: &str) -> Option<Server> {
        let reason = match Server::start() {
            Ok(server) => return Some(server),
            Err(reason) => reason,
        };
        let required = std::env::var_os("FULMEN_TEST_OBJECT_STORES")
            .is_some_and(|set| !set.is_empty() && set != "0");
        assert!(!required, "FULMEN_TEST_OBJECT_STORES is set, and there is no server: {reason}");
        // Write to stderr directly, because the test harness hides the output of a passing test.
        io::stderr().write_all(format!("\nskipped: {test}: {reason}\n").as_bytes()).unwrap();
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn start() -> Result<Server, String> {
        let python = environment()?;
        // The port was free a moment ago; if another process takes it, the start fails.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.map_err(|e| e.to_string())?;
        let mut command = Command::new(&python);
        command.args(["-c", SERVE, &address.port().to_string()]);
        let log = std::fs::File::create(python.with_file_name("log")).map_err(|e| e.to_string())?;
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut server =
            Server { process: process.map_err(|e| format!("{}: {e}", python.display()))?, address };
        let began = Instant::now();
        while TcpStream::connect(server.address).is_err() {
            if let Ok(Some(status)) = server.process.try_wait() {
                return Err(format!("the server ended with {status}"));
            }
            if began.elapsed() > START {
                return Err(format!("the server did not start within {START:?}"));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Creates a public bucket.
    pub(crate) fn make_bucket(&self, name: &str) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        let headers = "x-amz-acl: public-read-write\r\nContent-Length: 0\r\nConnection: close";
        write!(stream, "PUT /{name} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n\r\n", self.address)?;
        let answer = io::read_to_string(stream)?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(answer)) }
    }
}

/// The Python of an environment that has the packages.
fn environment() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = exe.ancestors().nth(3).unwrap_or(Path::new(".")).join("object-store-servers");
    let python = folder.join("bin/python");
    let marker = folder.join("installed");
    let packages = PACKAGES.join(" ");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == packages) {
        return Ok(python);
    }
    finish(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    finish(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(PACKAGES),
    )?;
    std::fs::write(marker, packages).map_err(|e| e.to_string())?;
    Ok(python)
}

/// Runs a command with a time limit.
fn finish(command: &mut Command) -> Result<(), String> {
    let name = format!("{command:?}");
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = spawned.map_err(|e| format!("{name}: {e}"))?;
    let began = Instant::now();
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{name}: {status}")),
            None if began.elapsed() > INSTALL => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name}: not done within {INSTALL:?}"));
            }
            None => sleep(Duration::from_millis(50)),
        }
    }
}
