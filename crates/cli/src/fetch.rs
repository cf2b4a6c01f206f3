//! [`fetch`]: downloads the files of a well-known dataset.
//!
//! Each file's SHA-256 is pinned. A file has a temporary name until it is complete and verified. An
//! interrupted download can be continued.
//!
//! Out of scope: requests and retries (`fulmen-files`); reading the files (`fulmen-data`,
//! `fulmen-images`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use flate2::read::GzDecoder;
use fulmen_data::{Error, Result};
use fulmen_files::{Location, Lock};

use crate::pack::{Progress, sha256_of};

/// The size of a request. An interruption loses at most this number of bytes.
const PART: u64 = 8 << 20;

/// A dataset that can be fetched.
#[derive(Debug)]
pub struct PublishedDataset {
    /// The name of the dataset, such as `mnist`.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The addresses of folders on web servers that have the files, in order of preference.
    addresses: &'static [&'static str],
    /// The names and SHA-256 checksums of the files.
    files: &'static [(&'static str, &'static str)],
}

/// The datasets that [`fetch`] knows. Their checksums are those of `tensorflow-datasets`.
pub const DATASETS: &[PublishedDataset] = &[
    PublishedDataset {
        name: "mnist",
        about: "handwritten digits, 28x28: 60,000 and 10,000 (11.6 MB)",
        addresses: &[
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ],
        files: &[
            (
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
    },
    PublishedDataset {
        name: "fashion-mnist",
        about: "pieces of clothing, 28x28: 60,000 and 10,000 (30.9 MB)",
        addresses: &["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"],
        files: &[
            (
                "train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ],
    },
    PublishedDataset {
        name: "kmnist",
        about: "cursive Japanese characters, 28x28: 60,000 and 10,000 (21.2 MB)",
        addresses: &["http://codh.rois.ac.jp/kmnist/dataset/kmnist"],
        files: &[
            (
                "train-images-idx3-ubyte.gz",
                "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
            ),
        ],
    },
    PublishedDataset {
        name: "cifar10",
        about: "photographs of 10 classes, 32x32: 50,000 and 10,000 (170 MB)",
        addresses: &["https://www.cs.toronto.edu/~kriz"],
        files: &[(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )],
    },
    PublishedDataset {
        name: "cifar100",
        about: "photographs of 100 classes, 32x32: 50,000 and 10,000 (169 MB)",
        addresses: &["https://www.cs.toronto.edu/~kriz"],
        files: &[(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        )],
    },
];

/// Downloads the files of a dataset into a folder, which is created if necessary, and unpacks
/// archives into it. Existing files with the expected SHA-256 are kept. `from` is another source of
/// the files: a folder on a web server, in a store, or on a local disk.
///
/// ```no_run
/// use fulmen_cli::fetch::{DATASETS, fetch};
///
/// let mnist = DATASETS.iter().find(|dataset| dataset.name == "mnist").expect("it is in the table");
/// fetch(mnist, "data/mnist".as_ref(), None, &())?; // and then Mnist::open("data/mnist", Split::Train)
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// No address answers within the time of `FULMEN_STORE_GIVE_UP_SECONDS` (180); a server sends other
/// content than what was published; the folder cannot be written to, or another process is fetching
/// files into it.
pub fn fetch(
    dataset: &PublishedDataset,
    folder: &Path,
    from: Option<&str>,
    progress: &dyn Progress,
) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| Error::io(folder, "cannot create the folder", e))?;
    let _lock = Lock::take(folder, ".fetch.lock")?;
    let addresses = from.map_or(dataset.addresses.to_vec(), |from| vec![from]);
    for (name, sha256) in dataset.files {
        let file = folder.join(name);
        if file.is_file() && is_published(&file, sha256, progress)? {
            progress.note(&format!("{name} is there already"));
        } else {
            download(&addresses, &file, name, sha256, progress)?;
        }
        if name.ends_with(".tar.gz") {
            unpack(&file, folder, progress)?;
        }
    }
    Ok(())
}

/// Downloads a file from the first address that serves the published content.
fn download(
    addresses: &[&str],
    file: &Path,
    name: &str,
    sha256: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let mut last_error = None;
    for address in addresses {
        if let Some(error) = last_error {
            progress.note(&format!("{error}; trying {address}"));
        }
        match download_from(&Location::from(*address).join(name), file, name, sha256, progress) {
            Ok(()) => return Ok(()),
            Err(error) => last_error = Some(error),
        }
    }
    Err(last_error.unwrap_or_else(|| Error::usage(format!("{name} has no download address"))))
}

fn download_from(
    from: &Location,
    to: &Path,
    name: &str,
    sha256: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let part = to.with_file_name(format!(".{name}.part"));
    let io = |doing: &'static str| {
        let part = part.clone();
        move |source: io::Error| Error::io(&part, doing, source)
    };
    let size = from.size()?;
    // Opened for reading too, because a pipe would otherwise wait for a reader.
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(&part)
        .map_err(io("cannot write the file"))?;
    let metadata = file.metadata().map_err(io("cannot read the file's size"))?;
    if !metadata.is_file() {
        return Err(Error::file(&part, "this is not a regular file; remove it"));
    }
    let mut done = metadata.len();
    if done > size {
        file.set_len(0).map_err(io("cannot start the file again"))?;
        done = 0;
    }
    progress.begin(&format!("fetching {from}"), size);
    progress.advance(done);
    while done < size {
        let bytes = from.read_range(done..size.min(done + PART))?;
        file.write_all(&bytes).map_err(io("cannot write the file"))?;
        done += bytes.len() as u64;
        progress.advance(bytes.len() as u64);
    }
    if !is_published(&part, sha256, progress)? {
        fs::remove_file(&part).map_err(io("cannot remove the file"))?;
        let message = format!(
            "the download is not the published file, whose SHA-256 is {sha256}; it was deleted"
        );
        return Err(from.error(message));
    }
    file.sync_all().map_err(io("cannot write the file"))?;
    fs::rename(&part, to).map_err(io("cannot rename the file"))?;
    fulmen_durable::sync_folder(to).map_err(io("cannot write the folder"))
}

fn is_published(file: &Path, sha256: &str, progress: &dyn Progress) -> Result<bool> {
    let io = |source| Error::io(file, "cannot read the file", source);
    progress.begin(&format!("verifying {}", file.display()), file.metadata().map_err(io)?.len());
    Ok(sha256_of(file, |bytes| progress.advance(bytes)).map_err(io)? == sha256)
}

/// Unpacks the files of an archive into a folder, without the archive's folders.
fn unpack(archive: &Path, folder: &Path, progress: &dyn Progress) -> Result<()> {
    let io = |source| Error::io(archive, "cannot unpack the file", source);
    progress.begin(&format!("unpacking {}", archive.display()), 0);
    let mut tar =
        tar::Archive::new(GzDecoder::new(fulmen_durable::open_regular(archive).map_err(io)?));
    for entry in tar.entries().map_err(io)? {
        let mut entry = entry.map_err(io)?;
        let path = entry.path().map_err(io)?.into_owned();
        let Some(name) = path.file_name().filter(|_| entry.header().entry_type().is_file()) else {
            continue;
        };
        let to = folder.join(name);
        let size = entry.size();
        fulmen_durable::write(&to, Some(size), |file| io::copy(&mut entry, file).map(drop))
            .map_err(|source| Error::io(&to, "cannot write the file", source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read as _};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use flate2::{Compression, write::GzEncoder};
    use fulmen_data::internal::hex;
    use sha2::{Digest, Sha256};

    use super::*;

    /// A web server on the loopback interface that has one file and records the requested ranges.
    struct Server {
        address: &'static str,
        sent: Arc<Mutex<Vec<String>>>,
    }

    impl Server {
        fn start(path: &'static str, bytes: Vec<u8>) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}/~files", listener.local_addr().unwrap());
            let sent = Arc::new(Mutex::new(Vec::new()));
            let log = sent.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let bytes = bytes.clone();
                    let log = log.clone();
                    thread::spawn(move || {
                        let mut reader = BufReader::new(stream.try_clone().unwrap());
                        loop {
                            let head: Vec<String> = reader
                                .by_ref()
                                .lines()
                                .map_while(io::Result::ok)
                                .take_while(|line| !line.is_empty())
                                .collect();
                            let Some(first) = head.first() else { return };
                            let range = head.iter().find_map(|line| {
                                line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned)
                            });
                            let body = match &range {
                                Some(range) => {
                                    let (from, last) = range.split_once('-').unwrap();
                                    let from: usize = from.parse().unwrap();
                                    let last: usize = last.parse().unwrap();
                                    &bytes[from..=last.min(bytes.len() - 1)]
                                }
                                None => &bytes[..],
                            };
                            let status = match (first.contains(path), &range) {
                                (false, _) => "404 Not Found".to_owned(),
                                (_, None) => "200 OK".to_owned(),
                                (_, Some(range)) => {
                                    log.lock().unwrap().push(range.clone());
                                    format!(
                                        "206 Partial Content\r\nContent-Range: bytes {range}/{}",
                                        bytes.len()
                                    )
                                }
                            };
                            let body = if first.contains(path) { body } else { &[] };
                            write!(
                                stream,
                                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
                                body.len()
                            )
                            .unwrap();
                            if !first.starts_with("HEAD") && stream.write_all(body).is_err() {
                                return;
                            }
                        }
                    });
                }
            });
            Server { address: address.leak(), sent }
        }
    }

    fn published(name: &'static str, bytes: &[u8], addresses: &[&'static str]) -> PublishedDataset {
        let sha256: &'static str = hex(&Sha256::digest(bytes)).leak();
        let files: &'static [_] = vec![(name, sha256)].leak();
        PublishedDataset { name: "toy", about: "", addresses: addresses.to_vec().leak(), files }
    }

    #[test]
    fn a_download_continues_and_is_not_repeated() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        let server = Server::start("/~files/toy.gz", bytes.clone());
        // The first address does not have the file.
        let toy = published(
            "toy.gz",
            &bytes,
            &[format!("{}/none", server.address).leak(), server.address],
        );
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".toy.gz.part"), &bytes[..70_000]).unwrap();
        fetch(&toy, folder.path(), None, &()).unwrap();
        assert_eq!(fs::read(folder.path().join("toy.gz")).unwrap(), bytes);
        assert_eq!(*server.sent.lock().unwrap(), ["70000-99999"]);
        fetch(&toy, folder.path(), None, &()).unwrap();
        assert_eq!(server.sent.lock().unwrap().len(), 1);
        // A damaged file is downloaded again.
        fs::write(folder.path().join("toy.gz"), b"damaged").unwrap();
        fetch(&toy, folder.path(), Some(server.address), &()).unwrap();
        assert_eq!(fs::read(folder.path().join("toy.gz")).unwrap(), bytes);
    }

    #[test]
    fn a_file_with_another_hash_is_not_kept() {
        let server = Server::start("/~files/toy.gz", b"something else".to_vec());
        let folder = tempfile::tempdir().unwrap();
        let toy = published("toy.gz", b"the file", &[server.address]);
        let error = fetch(&toy, folder.path(), None, &()).unwrap_err().to_string();
        assert!(
            error.contains("toy.gz: the download is not the published file, whose SHA-256 is"),
            "{error}"
        );
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".fetch.lock"]);
    }

    #[test]
    fn an_archive_is_unpacked_without_its_folders() {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        tar.append_data(&mut header, "toy-batches/one.bin", &b"abc"[..]).unwrap();
        let bytes = tar.into_inner().unwrap().finish().unwrap();
        let server = Server::start("/~files/toy.tar.gz", bytes.clone());
        let folder = tempfile::tempdir().unwrap();
        fetch(&published("toy.tar.gz", &bytes, &[server.address]), folder.path(), None, &())
            .unwrap();
        assert_eq!(fs::read(folder.path().join("one.bin")).unwrap(), b"abc");
    }
}
