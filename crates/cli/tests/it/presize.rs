//! Pre-sizing: folders of images into shards of smaller ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen_cli::Presize;
use fulmen_cli::pack::shards_info;
use fulmen_data::SampleRng;
use fulmen_images::{Image, ImageFolder, ImagePipeline};
use fulmen_shards::TarShardWriter;

/// A folder of 23 images of two classes, all 60 × 40 except one of 20 × 30.
fn folder(root: &Path) -> ImageFolder {
    for i in 0..23usize {
        let class = root.join(["cat", "dog"][i % 2]);
        fs::create_dir_all(&class).unwrap();
        let (width, height) = if i == 4 { (20, 30) } else { (60, 40) };
        let pixels = (0..width * height * 3).map(|p| (p / 7 + i * 9) as u8).collect();
        let image = Image::new(width, height, 3, pixels).unwrap();
        let file = fs::File::create(class.join(format!("{i:02}.png"))).unwrap();
        let mut encoder = png::Encoder::new(file, width as u32, height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(image.pixels()).unwrap();
    }
    ImageFolder::open(root).unwrap()
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.strip_prefix(folder).unwrap().to_owned(), fs::read(path).unwrap()))
        .collect()
}

/// The files of a tar by their names.
fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        (entry.path().unwrap().to_str().unwrap().to_owned(), bytes)
    });
    entries.collect()
}

#[test]
fn large_images_are_resized_and_small_ones_are_copied() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    let dataset = folder(&images);
    let presize = || Presize::new(&out).shorter_side(32).max_samples(10);
    let shards = presize().threads(3).run(&dataset, &()).unwrap();
    assert_eq!(shards.iter().map(|shard| shard.samples).collect::<Vec<_>>(), [10, 10, 3]);
    let info = shards_info(&[&out]).unwrap();
    assert_eq!((info.samples(), info.extensions["jpg"].0, info.extensions["png"].0), (23, 22, 1));
    assert_eq!(info.classes.values().copied().collect::<Vec<_>>(), [12, 11]);
    // Shuffled: the first shard has both classes.
    assert_eq!(shards_info(&[&shards[0].path]).unwrap().classes.len(), 2);

    let all: Vec<_> = shards.iter().flat_map(|shard| entries(&shard.path)).collect();
    let small = all.iter().find(|(name, _)| name.ends_with(".png")).unwrap();
    assert_eq!(small.1, fs::read(images.join("cat/04.png")).unwrap());
    let mut random = SampleRng::new(0, 0, 0);
    for (name, bytes) in all.iter().filter(|(name, _)| name.ends_with(".jpg")) {
        let decoded = ImagePipeline::rgb().decode(bytes, &mut random).unwrap();
        assert_eq!((decoded.width(), decoded.height()), (48, 32));
        let index: usize = name.trim_end_matches(".jpg").parse().unwrap();
        let about =
            &all.iter().find(|(other, _)| *other == name.replace(".jpg", ".json")).unwrap().1;
        let about: serde_json::Value = serde_json::from_slice(about).unwrap();
        assert_eq!(images.join(about["path"].as_str().unwrap()), dataset.path(index));
        // The JPEG is close to the resized image.
        let file = fs::read(dataset.path(index)).unwrap();
        let expected = ImagePipeline::rgb().resize(32).decode(&file, &mut random).unwrap();
        let distance: i64 = decoded
            .pixels()
            .iter()
            .zip(expected.pixels())
            .map(|(a, b)| (i64::from(*a) - i64::from(*b)).abs())
            .sum();
        assert!(distance < 12 * decoded.pixels().len() as i64, "{name}: {distance}");
    }

    // The shards are the same with a different number of threads, and after a run that ended after
    // its first shard.
    let sound = files(&out);
    fs::remove_file(&shards[1].path).unwrap();
    fs::remove_file(&shards[2].path).unwrap();
    assert_eq!(presize().threads(1).run(&dataset, &()).unwrap(), shards);
    assert!(files(&out) == sound);

    // The images are the same if their folder is moved, and shards that exist are not made again.
    let moved = temporary.path().join("moved");
    fs::rename(&images, &moved).unwrap();
    let dataset = ImageFolder::open(&moved).unwrap();
    assert_eq!(presize().run(&dataset, &()).unwrap(), shards);

    let error = presize().quality(50).run(&dataset, &()).unwrap_err().to_string();
    assert!(
        error.contains("quality 95") && error.contains("now it is") && error.contains("quality 50"),
        "{error}"
    );
}

#[test]
fn unreadable_images_are_errors_or_left_out() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    folder(&images);
    fs::write(images.join("dog/03.png"), b"GIF89a").unwrap();
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_fulmen"))
            .args(["data", "presize", "--size", "32"])
            .args(more)
            .args([&images, Path::new("--output"), &out].map(|path| path as &Path))
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = run(&[]);
    assert!(code == Some(1) && text.contains("dog/03.png") && text.contains("a GIF"), "{text}");
    let (code, text) = run(&["--allow-bad", "1"]);
    assert!(
        code == Some(0) && text.contains("22 images in 1 shard,") && text.contains("dog/03.png"),
        "{text}"
    );
    let error = Presize::new(&out)
        .shorter_side(0)
        .run(&ImageFolder::open(&images).unwrap(), &())
        .unwrap_err();
    assert!(error.is_usage(), "{error}");

    // One message has the whole cause, and `source` does not repeat it.
    let _ = fs::remove_dir_all(&out);
    fs::write(&out, "a file").unwrap();
    let error = Presize::new(&out)
        .shorter_side(32)
        .run(&ImageFolder::open(&images).unwrap(), &())
        .unwrap_err();
    assert!(std::error::Error::source(&error).is_none(), "{error}");
}

#[test]
fn the_limits_of_images_apply() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    folder(&images);
    let mut damaged = fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/tests/reference/images/s444.jpg"),
    )
    .unwrap();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 2].copy_from_slice(&[0xff, 0xd9]);
    fs::write(images.join("dog/99.jpg"), damaged).unwrap();
    let dataset = ImageFolder::open(&images).unwrap();
    let error = Presize::new(&out).shorter_side(32).run(&dataset, &()).unwrap_err().to_string();
    assert!(error.contains("99.jpg") && error.contains("keep_damaged"), "{error}");
    let run = |out: &Path, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
        let output = command.args(["data", "presize", "--size", "32"]).args(more);
        let output = output.arg(&images).arg("--output").arg(out).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = run(&out, &["--keep-damaged"]);
    assert!(
        code == Some(1)
            && text.contains(&format!(
                "reducing_gap=2) with {}, seed 0",
                fulmen_images::jpeg_decoder()
            ))
            && text.contains("reducing_gap=2, keep_damaged) with "),
        "{text}"
    );
    let other = temporary.path().join("other");
    let (code, text) = run(&other, &["--keep-damaged", "--max-pixels", "2000"]);
    assert!(code == Some(1) && text.contains("over the limit of 2000"), "{text}");
    let (code, text) =
        run(&temporary.path().join("third"), &["--keep-damaged", "--max-pixels", "7575"]);
    assert!(code == Some(0) && text.contains("24 images"), "{text}");
}

#[test]
fn a_file_that_cannot_be_read_ends_the_run_and_is_not_left_out() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    let dataset = folder(&images);
    let path = images.join("dog/03.png");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = Presize::new(&out).shorter_side(32).allow_bad(9).run(&dataset, &()).unwrap_err();
    assert!(error.to_string().contains("03.png") && !error.is_usage(), "{error}");
    let made_of: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("presize.json")).unwrap()).unwrap();
    assert_eq!(made_of["left_out"].as_array().unwrap().len(), 0);
}

#[test]
fn shards_of_others_and_a_second_run_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    let dataset = folder(&images);
    let run = || Presize::new(&out).shorter_side(32).max_samples(10).run(&dataset, &());
    fs::create_dir(&out).unwrap();
    fs::write(out.join("shard-000000.tar"), "mine").unwrap();
    let error = run().unwrap_err();
    assert!(error.is_file() && error.to_string().contains("no presize.json"), "{error}");
    assert_eq!(fs::read(out.join("shard-000000.tar")).unwrap(), b"mine");
    fs::remove_file(out.join("shard-000000.tar")).unwrap();

    let lock = fs::File::create(out.join(".presize.lock")).unwrap();
    assert!(fulmen_durable::try_lock(&lock).unwrap());
    let error = run().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("is being written by"), "{error}");
    drop(lock);
    assert_eq!(run().unwrap().len(), 3);
    let error = Presize::new(&out).threads(usize::MAX).run(&dataset, &()).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("more than 1024"), "{error}");
}

#[test]
fn open_files_of_other_writers_stay() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    let out = temporary.path().join("out");
    let dataset = folder(&images);
    let mut others = TarShardWriter::builder(&out).prefix("others").build().unwrap();
    others.write("a", &[("txt", b"still open")]).unwrap();
    fs::write(out.join(".part-list"), "mine").unwrap();
    fs::create_dir(out.join(".part-folder")).unwrap();
    fs::write(out.join(".part-AbCdEf"), "left over").unwrap();
    Presize::new(&out).shorter_side(32).run(&dataset, &()).unwrap();
    let shards = others.finish().unwrap();
    assert_eq!(entries(&shards[0].path), [("a.txt".to_owned(), b"still open".to_vec())]);
    assert!(
        out.join(".part-list").is_file()
            && out.join(".part-folder").is_dir()
            && !out.join(".part-AbCdEf").exists()
    );
}

#[test]
fn a_killed_run_continues_without_unfinished_files() {
    let temporary = tempfile::tempdir().unwrap();
    let images = temporary.path().join("images");
    folder(&images);
    let command = |out: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
        command.args(["data", "presize", "--size", "32", "--max-samples", "1", "--threads", "1"]);
        command.arg(&images).arg("--output").arg(out).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let undisturbed = temporary.path().join("undisturbed");
    let killed = temporary.path().join("killed");
    assert!(command(&undisturbed).status().unwrap().success());
    let mut child = command(&killed).spawn().unwrap();
    while !killed.join("shard-000001.tar").exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // This is the state after a kill at any time: some shards exist, and one is truncated.
    fs::remove_file(killed.join("shard-000022.tar")).unwrap_or_default();
    fs::write(killed.join(".part-AbCdEf"), vec![1; 700]).unwrap();
    assert!(shards_info(&[&killed]).unwrap().samples() >= 2);
    assert!(command(&killed).status().unwrap().success());
    let shards = |folder| {
        files(folder)
            .into_iter()
            .filter(|(path, _)| path.to_str() != Some(".presize.lock"))
            .collect::<Vec<_>>()
    };
    assert!(shards(&killed) == shards(&undisturbed));
}

#[test]
fn a_folder_without_subfolders_has_no_classes() {
    let temporary = tempfile::tempdir().unwrap();
    let flat = temporary.path().join("flat");
    folder(temporary.path());
    fs::rename(temporary.path().join("dog"), &flat).unwrap();
    let run = |arguments: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_fulmen"))
            .args(["data", "presize", "--size", "32"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let out = temporary.path().join("out");
    let printed = run(&[&flat, Path::new("--output"), &out]);
    assert!(printed.starts_with("11 images without classes in 1 shard, "), "{printed}");
    let shard = entries(&out.join("shard-000000.tar"));
    let extensions: Vec<&str> =
        shard.iter().map(|(name, _)| name.rsplit('.').next().unwrap()).collect();
    assert_eq!(extensions, ["jpg", "json"].repeat(11));
    let about: serde_json::Value = serde_json::from_slice(&shard[1].1).unwrap();
    let names = about.as_object().unwrap();
    assert!(names.len() == 1 && flat.join(about["path"].as_str().unwrap()).is_file(), "{about}");

    // `out` has no images, but it is a folder, so the others are loose.
    let printed = run(&[
        temporary.path(),
        "--flat".as_ref(),
        "--output".as_ref(),
        &temporary.path().join("all"),
    ]);
    assert!(printed.starts_with("23 images without classes in 1 shard, "), "{printed}");
}
