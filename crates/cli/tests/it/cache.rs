//! `fulmen cache`: showing, verifying, repairing, clearing and making caches.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fulmen_cache::CacheExt;
use fulmen_data::{DType, Dataset, Field, Fingerprint, HostBatch, Result, Sample};
use fulmen_images::{Image, ImageFolder, ImagePipeline};
use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{CompileOptions, Plugin};

/// 60 samples of 43 bytes.
struct Numbers;

impl Dataset for Numbers {
    fn len(&self) -> usize {
        60
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("bytes", DType::U8, [43])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sample.write(0, &[index as u8; 43])
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("numbers", "");
        Ok(())
    }
}

/// Runs the program; returns whether it succeeded, and its output.
fn fulmen(arguments: &[&str], path: &Path) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .arg("cache")
        .args(arguments)
        .arg(path)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn the_program_shows_verifies_repairs_and_clears() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let made = Numbers.cache(&path).part_bytes(10 * 43).workers(2).version("v1").open().unwrap();
    let (done, text) = fulmen(&["info"], &path);
    assert!(
        done && text.contains("60 samples × 1 variant × 43 bytes")
            && text.contains("version: `v1`"),
        "{text}"
    );
    let (done, text) = fulmen(&["verify"], &path);
    assert!(done && text.contains("bytes are intact"), "{text}");
    fs::remove_file(made.path().join("part-00002.arrow")).unwrap();
    let (done, text) = fulmen(&["verify"], &path);
    assert!(!done && text.contains("1 damaged file: ") && text.contains("--repair"), "{text}");
    let (done, text) = fulmen(&["verify", "--repair"], &path);
    assert!(done && text.contains("removed 1 file;"), "{text}");
    let (done, text) = fulmen(&["info"], &path);
    assert!(done && text.contains("1 of the files") && text.contains("not finished"), "{text}");
    let (done, text) = fulmen(&["clear"], &path);
    assert!(done && text.contains("freed ") && !path.exists(), "{text}");
    let (done, text) = fulmen(&["info"], &path);
    assert!(!done && text.contains("there is no cache here"), "{text}");
}

#[test]
fn the_program_lists_verifies_and_clears_compiled_programs() {
    let folder = tempfile::tempdir().unwrap();
    let client = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    let client = client.create_client(&[("cpu_device_count", 1.into())]).unwrap();
    let cache = CompileCache::new(folder.path(), 1 << 30);
    let options = CompileOptions::new();
    let text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }";
    let key = ProgramKey::new(&client.topology().unwrap(), "step", text, &options, []).unwrap();
    cache
        .store(&key, &client.compile(text, &options).unwrap(), Duration::from_millis(1540))
        .unwrap();

    let (done, text) = fulmen(&["compile", "list", "--folder"], folder.path());
    assert!(done && text.contains("compiled in 1.54 s, used "), "{text}");
    let (done, text) = fulmen(&["compile", "verify", "--folder"], folder.path());
    assert!(done && text.contains("are intact"), "{text}");
    let path = cache.entries().unwrap()[0].path.clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[1000] ^= 4;
    fs::write(&path, bytes).unwrap();
    let (done, text) = fulmen(&["compile", "verify", "--folder"], folder.path());
    assert!(
        !done
            && text.contains("its checksum does not match")
            && text.contains("1 damaged program in"),
        "{text}"
    );
    let (done, text) = fulmen(&["compile", "clear", "--folder"], folder.path());
    assert!(done && text.contains("freed ") && !path.exists(), "{text}");
    let (done, text) = fulmen(&["compile", "list", "--folder"], folder.path());
    assert!(done && text.starts_with("0 programs"), "{text}");
}

#[test]
fn the_program_caches_a_folder_of_images() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let out = folder.path().join("cache");
    for (i, class) in ["cat", "dog", "dog"].into_iter().enumerate() {
        fs::create_dir_all(images.join(class)).unwrap();
        let image =
            Image::new(30, 20, 3, (0..30 * 20 * 3).map(|p| (p * (i + 1)) as u8).collect()).unwrap();
        let file = fs::File::create(images.join(class).join(format!("{i}.png"))).unwrap();
        let mut encoder = png::Encoder::new(file, 30, 20);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(image.pixels()).unwrap();
    }
    let options = [
        "warm",
        "--size",
        "16",
        "--resize",
        "18",
        "--variants",
        "2",
        "--data-version",
        "v1",
        "--images",
    ];
    let arguments = |more: &'static str| [&options[..], &[images.to_str().unwrap(), more]].concat();
    let (done, text) = fulmen(&[arguments("--dry-run"), vec!["--output"]].concat(), &out);
    assert!(done && text.contains("3 samples × 2 variants × 772 bytes") && !out.exists(), "{text}");
    let (done, text) = fulmen(&arguments("--output"), &out);
    assert!(done && text.contains("3 samples in"), "{text}");

    // A training with the same pipeline finds it.
    let data = ImageFolder::open(&images)
        .unwrap()
        .decode(ImagePipeline::rgb().resize(18).center_crop(16))
        .unwrap();
    let expected = HostBatch::collate(&data, &[0, 1, 2]).unwrap();
    let cached = data
        .cache(&out)
        .version("v1")
        .variants(2)
        .on_event(|event| panic!("{event:?}"))
        .open()
        .unwrap();
    let batch = HostBatch::collate(&cached, &[0, 1, 2]).unwrap();
    assert_eq!(batch.field_bytes(0).unwrap(), expected.field_bytes(0).unwrap());
    assert_eq!(batch.values::<i32>(1).unwrap(), [0, 1, 1]);

    let (done, text) = fulmen(&[arguments("--max-pixels"), vec!["599", "--output"]].concat(), &out);
    assert!(!done && text.contains("over the limit of 599"), "{text}");
    let limited = [arguments("--keep-damaged"), vec!["--max-pixels", "600", "--output"]].concat();
    let (done, text) = fulmen(&limited, &out);
    assert!(done && text.contains("3 samples in"), "{text}");
    let pipeline = ImagePipeline::rgb().resize(18).center_crop(16).max_pixels(600).keep_damaged();
    let data = ImageFolder::open(&images).unwrap().decode(pipeline).unwrap();
    data.cache(&out)
        .version("v1")
        .variants(2)
        .on_event(|event| panic!("{event:?}"))
        .open()
        .unwrap();

    fs::write(images.join("cat/0.png"), b"").unwrap();
    let (done, text) = fulmen(&[arguments("--refuse-others"), vec!["--output"]].concat(), &out);
    assert!(!done && text.contains("size: some of the 3 values differ"), "{text}");
    let (done, text) = fulmen(&arguments("--output"), &out);
    assert!(!done && text.contains("cat/0.png"), "{text}");
    let (done, text) = fulmen(&[arguments("--allow-bad"), vec!["2", "--output"]].concat(), &out);
    assert!(done && text.contains("bad: sample 0"), "{text}");
}
