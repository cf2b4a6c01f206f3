//! Folders and archives of images of any origin, and what is refused in them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use fulmen_cli::pack::{Manifest, Pack};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::pack::archives::{entries, jpeg, tar_of, zip_of};
use crate::pack::program;

fn pack(folder: &Path, source: &str) -> Pack {
    fs::remove_dir_all(folder.join("shards")).unwrap_or_default();
    Pack::new(folder.join("shards")).source("train", folder.join(source)).max_samples(7)
}

fn refused(pack: &Pack) -> String {
    pack.run(&()).unwrap_err().to_string()
}

/// The class of each sample in the first shard.
fn classes(folder: &Path, manifest: &Manifest) -> BTreeMap<String, String> {
    let files = entries(&folder.join("shards/train-000000.tar"));
    let numbers = files.iter().filter_map(|(name, bytes)| {
        let number: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
        Some((name.strip_suffix(".cls")?.to_owned(), manifest.classes[number].clone()))
    });
    numbers.collect()
}

fn files(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    names.iter().enumerate().map(|(number, name)| ((*name).to_owned(), jpeg(number + 1))).collect()
}

fn as_map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, class)| (key.to_owned(), class.to_owned())).collect()
}

#[test]
fn folders_and_archives_of_class_folders_have_the_same_samples() {
    let folder = tempfile::tempdir().unwrap();
    // The same file name in two classes. Hidden files and other files are left out.
    let names = ["cat/1.jpg", "cat/2.b.jpeg", "dog/1.jpg", "dog/.hidden.jpg", "dog/readme.txt"];
    let all = files(&names);
    for (name, bytes) in &all {
        let path = folder.path().join("pictures").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::write(folder.path().join("a.tar"), tar_of(&all)).unwrap();
    fs::write(folder.path().join("a.zip"), zip_of(&all, CompressionMethod::Deflated)).unwrap();
    let inner = [
        ("cat.tar".to_owned(), tar_of(&files(&["1.jpg", "2.b.jpeg"]))),
        ("dog.tar".to_owned(), tar_of(&files(&["", "", "1.jpg"])[2..])),
    ];
    fs::write(folder.path().join("b.tar"), tar_of(&inner)).unwrap();
    let mut shards = Vec::new();
    for source in ["pictures", "a.tar", "a.zip", "b.tar"] {
        let manifest = pack(folder.path(), source).run(&()).unwrap();
        assert_eq!(manifest.classes, ["cat", "dog"], "{source}");
        let expected = [("cat/1", "cat"), ("cat/2_b", "cat"), ("dog/1", "dog")];
        assert_eq!(classes(folder.path(), &manifest), as_map(&expected), "{source}");
        shards.push(fs::read(folder.path().join("shards/train-000000.tar")).unwrap());
    }
    assert!(shards.iter().all(|shard| *shard == shards[0]));
    // A pattern that names two sources, and images without classes.
    let twice = pack(folder.path(), "[ab].tar");
    assert!(refused(&twice).contains("another image of the train split has the name cat/1 too"));
    let manifest = pack(folder.path(), "a.tar").flat(true).run(&()).unwrap();
    assert!(manifest.classes.is_empty() && classes(folder.path(), &manifest).is_empty());
}

#[test]
fn images_without_a_class_and_empty_sources_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.path().join(name), bytes).unwrap();
    write("flat.tar", tar_of(&files(&["a/1.jpg", "2.jpg"])));
    let error = refused(&pack(folder.path(), "flat.tar"));
    assert!(error.contains("flat.tar: entry 2.jpg: it has no class"), "{error}");
    write("val.tar", tar_of(&files(&["b/3.jpg"])));
    let other = pack(folder.path(), "flat.tar").source("val", folder.path().join("val.tar"));
    write("labels.csv", b"file_name,label\n1.jpg,a\n2.jpg,a\n".to_vec());
    let error = refused(&other.labels("train", folder.path().join("labels.csv")));
    assert!(
        error.contains("entry b/3.jpg: its class b is not among the 1 class of the"),
        "{error}"
    );
    write("none.tar", tar_of(&[("a/readme.txt".to_owned(), vec![1])]));
    write("none.zip", zip_of(&[], CompressionMethod::Stored));
    for source in ["none.tar", "none.zip"] {
        let error = refused(&pack(folder.path(), source));
        assert!(error.contains("there are no images in it"), "{error}");
    }
    write("empty.tar", Vec::new());
    assert!(refused(&pack(folder.path(), "empty.tar")).contains("the file is empty"));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(refused(&pack(folder.path(), "empty")).contains("it has no text files"));
    write("one.jpg", jpeg(1));
    assert!(refused(&pack(folder.path(), "one.jpg")).contains("this is an image"));
    write("x.tar.gz", jpeg(1));
    assert!(refused(&pack(folder.path(), "x.tar.gz")).contains("decompress it first"));
    let nested = tar_of(&[("b.tar".to_owned(), tar_of(&files(&["c.tar"])))]);
    write("a.tar", nested);
    assert!(refused(&pack(folder.path(), "a.tar")).contains("a tar in a tar"));
    assert!(!folder.path().join("shards").exists());
}

#[test]
fn links_and_names_that_lead_out_of_an_archive_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
        let mut builder = tar::Builder::new(File::create(path("links.tar")).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        builder.append_data(&mut header, "a/1.jpg", &[1; 4][..]).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        builder.append_link(&mut header, "a/2.jpg", "/etc/passwd").unwrap();
        builder.into_inner().unwrap();
        let error = refused(&pack(folder.path(), "links.tar"));
        assert!(
            error.contains("links.tar") && error.contains("entry a/2.jpg: it is a link"),
            "{error}"
        );
    }
    let mut writer = ZipWriter::new(File::create(path("links.zip")).unwrap());
    writer.add_symlink("a/2.jpg", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    writer.finish().unwrap();
    let error = refused(&pack(folder.path(), "links.zip"));
    assert!(error.contains("entry a/2.jpg: it is a symbolic link"), "{error}");

    for name in ["../1.jpg", "/etc/1.jpg", "a/../../1.jpg"] {
        let zip = zip_of(&[(name.to_owned(), jpeg(1))], CompressionMethod::Stored);
        fs::write(path("slip.zip"), zip).unwrap();
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(4);
        header.set_cksum();
        let mut builder = tar::Builder::new(File::create(path("slip.tar")).unwrap());
        builder.append(&header, &[1; 4][..]).unwrap();
        builder.into_inner().unwrap();
        for source in ["slip.zip", "slip.tar"] {
            let error = refused(&pack(folder.path(), source));
            assert!(error.contains(&format!("entry {name}: its name leads out of")), "{error}");
        }
    }
    // Links in folders are followed, as torchvision does. A link without a target is an error.
    fs::create_dir_all(path("pictures/cat")).unwrap();
    fs::write(path("one.jpg"), jpeg(1)).unwrap();
    symlink(path("one.jpg"), path("pictures/cat/one.jpg")).unwrap();
    assert_eq!(pack(folder.path(), "pictures").run(&()).unwrap().splits[0].samples, 1);
    symlink(path("nothing.jpg"), path("pictures/cat/two.jpg")).unwrap();
    assert!(refused(&pack(folder.path(), "pictures")).contains("two.jpg"));
}

#[test]
fn options_that_do_not_fit_the_sources_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.tar"), tar_of(&files(&["a/1.jpg"]))).unwrap();
    fs::write(folder.path().join("a.jsonl"), "{\"text\": \"x\"}\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.args(["data", "pack", "--to", "shards"]).args(arguments);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let images = [["--field", "x"], ["--validation", "0"], ["--to", "x"]];
    for option in &images[..2] {
        let error = run(&["a.tar", option[0], option[1]]);
        let name = option[0].trim_start_matches('-');
        assert!(error.contains(&format!("the option `{name}` is for texts, but a.tar")), "{error}");
    }
    assert!(run(&["a.tar", "--lines"]).contains("the option `lines` is for texts"));
    assert!(run(&["a.jsonl", "--flat"]).contains("the option `flat` is for images"));
    let error = run(&["a.jsonl", "--labels", "a.csv"]);
    assert!(error.contains("the option `labels` is for images, but a.jsonl"), "{error}");
    let error = run(&["a.jsonl", "a.tar"]);
    assert!(error.contains("a.tar has images, and a.jsonl has texts"), "{error}");
    let error = run(&["a.tar", "--labels", "val=a.csv"]);
    assert!(error.contains("labels of the split val, which has no source"), "{error}");
    assert!(run(&["=a.tar"]).contains("the name of its split is \"\""));
    assert!(run(&["a.tar", "--max-bytes", "0"]).contains("bytes of a shard may not be 0"));
    assert!(run(&["a.tar", "--special-tokens"]).contains("--tokenizer"));
    assert!(run(&["a.tar", "--unknown"]).contains("--unknown"));
    assert!(run(&["gs://bucket/a.tar"]).contains("archives are read in random order"));
    assert!(!folder.path().join("shards").exists());
}
