//! Weight files: values are read back as written, damaged files are rejected, and no file is left
//! half written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::values;
use fulmen_nn::safetensors::{CHECKSUMS, read, read_metadata, write};
use fulmen_nn::weights::{LoadReport, StateDict, Strictness, load_weights, save_weights};
use fulmen_nn::{BatchNorm2d, Conv2d, Error, Init, Linear, Module, Parameter};
use fulmen_tensor::{Block, DType, Literal, Tensor, TensorType};

#[derive(Module)]
struct Net {
    conv: Conv2d,
    bn: BatchNorm2d,
    fc: Linear,
}

fn net(classes: usize) -> Net {
    Net { conv: Conv2d::new(1, 4, 3), bn: BatchNorm2d::new(4), fc: Linear::new(4, classes) }
}

fn listing(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn without_checksums(mut metadata: BTreeMap<String, String>) -> BTreeMap<String, String> {
    assert!(metadata.remove(CHECKSUMS).is_some());
    metadata
}

#[test]
fn every_dtype_and_shape_comes_back_as_it_went() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let mut tensors = Vec::new();
    for dtype in DType::all().filter(|dtype| *dtype != DType::C128) {
        for shape in [Vec::new(), vec![0], vec![3], vec![2, 1, 3]] {
            let ty = TensorType::new(dtype, shape);
            let bytes: Vec<u8> = (0..ty.size_in_bytes())
                .map(|i| if dtype == DType::Bool { i as u8 % 2 } else { i as u8 + 1 })
                .collect();
            tensors.push((format!("{ty}"), Literal::from_bytes(ty, &bytes).unwrap()));
        }
    }
    let metadata = BTreeMap::from([
        ("a \"b\"\n".to_owned(), "ü{}".to_owned()),
        ("z".to_owned(), String::new()),
    ]);
    write(&path, &tensors, &metadata).unwrap();
    let (actual, actual_metadata) = read(&path).unwrap();
    assert_eq!(without_checksums(actual_metadata), metadata);
    assert_eq!(actual.len(), tensors.len());
    for (name, value) in &tensors {
        assert_eq!(actual[name].ty(), value.ty());
        assert_eq!(actual[name].bytes(), value.bytes(), "{name}");
    }
    let first = fs::read(&path).unwrap();
    write(&path, &tensors, &metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first, "the same values, the same bytes");
    assert_eq!(listing(folder.path()), ["all.safetensors"]);

    let wide = Literal::from_bytes(TensorType::new(DType::C128, [1]), &[0; 16]).unwrap();
    let error =
        write(&path, &[("wide".to_owned(), wide)], &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("`wide` is c128[1], which the format does not support"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), first);
}

#[test]
fn a_file_without_values_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.safetensors");
    write(&path, &[], &BTreeMap::new()).unwrap();
    let (tensors, metadata) = read(&path).unwrap();
    assert!(tensors.is_empty() && without_checksums(metadata).is_empty());
}

#[test]
fn names_that_no_reader_could_tell_apart_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let literal = || Literal::from_slice(&[1.0f32], [1]).unwrap();
    for names in [["a", "a"], ["", "b"], ["__metadata__", "b"]] {
        let tensors = names.map(|name| (name.to_owned(), literal()));
        let error = write(&path, &tensors, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("is not a valid tensor name"), "{error}");
    }
    assert!(listing(folder.path()).is_empty());
}

#[test]
fn a_file_that_cannot_be_written_leaves_all_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [("x".to_owned(), Literal::from_slice(&[1.0f32], [1]).unwrap())];

    let path = folder.path().join("no/such/folder/x.safetensors");
    let error = write(&path, &tensors, &BTreeMap::new()).unwrap_err();
    assert!(error.is_io() && error.to_string().contains("no/such/folder"), "{error}");

    // The path is a folder, so the complete new file cannot replace it.
    let occupied = folder.path().join("taken");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("inside"), "kept").unwrap();
    let error = write(&occupied, &tensors, &BTreeMap::new()).unwrap_err();
    assert!(error.is_io() && error.to_string().contains("taken"), "{error}");
    assert_eq!(listing(folder.path()), ["taken"], "the temporary file is gone");
    assert_eq!(fs::read_to_string(occupied.join("inside")).unwrap(), "kept");
}

#[test]
#[cfg(unix)]
fn a_new_file_has_the_rights_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("x.safetensors");
    let plain = folder.path().join("plain");
    write(&weights, &[], &BTreeMap::new()).unwrap();
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&weights), mode(&plain));
}

#[test]
fn damaged_files_are_errors_that_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.safetensors");
    let tensors = [
        ("a".to_owned(), Literal::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap()),
        ("b".to_owned(), Literal::from_slice(&[1u8, 2], [2]).unwrap()),
    ];
    write(&good, &tensors, &BTreeMap::new()).unwrap();
    let whole = fs::read(&good).unwrap();
    let bad = folder.path().join("bad.safetensors");
    let refused = |bytes: &[u8], case: &str| {
        fs::write(&bad, bytes).unwrap();
        let error = read(&bad).unwrap_err();
        assert!(error.is_format(), "{case}: {error}");
        assert!(error.to_string().contains("bad.safetensors"), "{case}: {error}");
    };
    for length in 0..whole.len() {
        refused(&whole[..length], "truncated");
    }
    refused(&[&whole[..], b"x"].concat(), "longer than its header says");
    refused(&[255; 64], "a header of 2^64 bytes");
    refused(b"\x02\0\0\0\0\0\0\0[]", "a header that is not an object");
    let replaced = |from: &str, to: &str| {
        let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8(whole[8..8 + header].to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &whole[8 + header..]].concat()
    };
    refused(&replaced("\"F32\"", "\"F99\""), "an unknown dtype");
    refused(&replaced("\"F32\"", "\"F64\""), "a dtype of another size");
    refused(&replaced("[3]", "[18446744073709551615,9]"), "a shape that overflows");
    refused(&replaced("[12,14]", "[13,15]"), "a gap");
    refused(&replaced("[12,14]", "[14,12]"), "an end before its start");
    // No change of a byte in the header makes the reader panic.
    for i in 0..whole.len() {
        for value in [0, b'"', b'9', b'-', 255] {
            let mut bytes = whole.clone();
            bytes[i] = value;
            fs::write(&bad, bytes).unwrap();
            let _ = read(&bad);
        }
    }
    let error = read(folder.path().join("none")).unwrap_err();
    assert!(error.is_io() && !error.is_format(), "{error}");
}

#[test]
fn a_model_comes_back_with_its_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let a = net(3);
    let b = net(3);
    a.initialize(1);
    let x = Tensor::from_slice(&(0..50).map(|i| i as f32 / 7.0).collect::<Vec<_>>(), [2, 1, 5, 5]);
    let _ = a.bn.forward(&a.conv.forward(&x));
    save_weights(&a, &path).unwrap();
    let report = load_weights(&b, &path, Strictness::Strict).unwrap();
    assert_eq!(report.loaded.len(), 9);
    assert!(report.is_complete() && report.converted.is_empty());
    assert_eq!(report.to_string(), "9 values loaded");
    for ((name, saved), (_, loaded)) in a.state().iter().zip(b.state()) {
        assert_eq!(values(&saved.get()), values(&loaded.get()), "{name}");
    }
    assert_eq!(values(&b.buffers()[2].1.get()), [1.0]);
}

#[test]
fn a_strict_load_that_does_not_fit_lists_all_and_changes_nothing() {
    #[derive(Module)]
    struct Other {
        conv: Conv2d,
        fc: Linear,
        extra: Parameter,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let saved = net(3);
    saved.initialize(1);
    save_weights(&saved, &path).unwrap();

    let other = Other {
        conv: Conv2d::new(1, 4, 3),
        fc: Linear::new(4, 5),
        extra: Parameter::new([1], Init::ones()),
    };
    other.initialize(2);
    let before: Vec<_> = other.state().iter().map(|(_, v)| values(&v.get())).collect();
    let error = load_weights(&other, &path, Strictness::Strict).unwrap_err();
    assert!(error.is_mismatch());
    let report = error.detail::<LoadReport>().unwrap();
    assert_eq!(report.missing, ["extra"]);
    assert_eq!(
        report.unexpected,
        ["bn.bias", "bn.num_batches_tracked", "bn.running_mean", "bn.running_var", "bn.weight"]
    );
    assert_eq!(report.mismatched.len(), 2);
    let text = error.to_string();
    for part in [
        "net.safetensors do not fit the model; nothing was loaded",
        "missing in the file: extra",
        "not part of the model: bn.bias, bn.num_batches_tracked",
        "fc.weight: the model has f32[5, 4], the file f32[3, 4]",
        "fc.bias: the model has f32[5], the file f32[3]",
        "Strictness::Lenient",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let after: Vec<_> = other.state().iter().map(|(_, v)| values(&v.get())).collect();
    assert_eq!(before, after);

    let report = load_weights(&other, &path, Strictness::Lenient).unwrap();
    assert_eq!(report.loaded, ["conv.weight", "conv.bias"]);
    assert_eq!(values(&other.conv.weight.get()), values(&saved.conv.weight.get()));
    assert_eq!(values(&other.fc.weight.get()), before[2]);
}

#[test]
fn other_float_types_are_converted_and_other_kinds_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let half = |v: &[f32]| Tensor::from_slice(v, [v.len()]).to_dtype(DType::Bf16).eval().unwrap();
    let tensors = [
        ("0".to_owned(), half(&[1.0, -2.5])),
        ("1".to_owned(), Literal::from_slice(&[1.0f64, 0.1], [2]).unwrap()),
        ("2".to_owned(), Literal::from_slice(&[1i32, 2], [2]).unwrap()),
    ];
    write(&path, &tensors, &BTreeMap::new()).unwrap();
    let model = [0, 1, 2].map(|_| Parameter::new([2], Init::zeros()));
    let report = load_weights(&model, &path, Strictness::Lenient).unwrap();
    assert_eq!(values(&model[0].get()), [1.0, -2.5]);
    assert_eq!(values(&model[1].get()), [1.0, f64::from(0.1f32)]);
    assert!(!model[2].is_set());
    let text = report.to_string();
    assert!(text.contains("converted: 0 (bf16 to f32), 1 (f64 to f32)"), "{text}");
    assert!(text.contains("2: the model has f32[2], the file i32[2]"), "{text}");
}

#[test]
fn tied_weights_are_saved_once_and_found_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let tied = || {
        let shared = Parameter::new([2], Init::normal(0.0, 1.0));
        BTreeMap::from([("embed".to_owned(), shared.clone()), ("head".to_owned(), shared)])
    };
    let model = tied();
    model.initialize(0);
    save_weights(&model, &path).unwrap();
    assert_eq!(read(&path).unwrap().0.into_keys().collect::<Vec<_>>(), ["embed"]);
    load_weights(&tied(), &path, Strictness::Strict).unwrap();
    // PyTorch's state dict has both names, or only the other one.
    let value = || Literal::from_slice(&[3.0f32, 4.0], [2]).unwrap();
    for names in [&["head"][..], &["embed", "head"]] {
        let tensors: Vec<_> = names.iter().map(|name| (name.to_string(), value())).collect();
        write(&path, &tensors, &BTreeMap::new()).unwrap();
        let model = tied();
        load_weights(&model, &path, Strictness::Strict).unwrap();
        assert_eq!(values(&model["embed"].get()), [3.0, 4.0]);
    }
}

#[test]
fn a_model_without_values_cannot_be_saved_and_says_which_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let error: Error = save_weights(&net(2), &path).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("`conv.weight` has no value to save") && text.contains("initialize(seed)"),
        "{text}"
    );
    assert!(listing(folder.path()).is_empty());
}

#[test]
fn each_flipped_bit_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fc.safetensors");
    let layer = Linear::new(3, 2);
    layer.initialize(0);
    save_weights(&layer, &path).unwrap();
    let whole = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    // Tensors of one dtype are sorted by name, so the bias comes first.
    assert_eq!(whole.len() - data, 24 + 8);
    // A flip in the key of the checksums makes it another key, and the file one without checksums.
    // So skip the key.
    let key =
        whole.windows(CHECKSUMS.len()).position(|window| window == CHECKSUMS.as_bytes()).unwrap();
    for byte in (0..whole.len()).filter(|byte| !(key..key + CHECKSUMS.len()).contains(byte)) {
        for bit in [byte % 8, (byte + 3) % 8] {
            let mut bytes = whole.clone();
            bytes[byte] ^= 1 << bit;
            fs::write(&path, bytes).unwrap();
            let fresh = Linear::new(3, 2);
            let error = load_weights(&fresh, &path, Strictness::Lenient).unwrap_err().to_string();
            let expected = match byte.checked_sub(data) {
                Some(0..8) => "tensor `bias` does not match its checksum",
                Some(_) => "tensor `weight` does not match its checksum",
                None => "fc.safetensors",
            };
            assert!(error.contains(expected), "bit {bit} of byte {byte}: {error}");
        }
    }
}

#[test]
fn damage_in_a_large_value_is_found_when_its_part_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let layer = Linear::new(1024, 1024).bias(false);
    layer.initialize(0);
    save_weights(&layer, &path).unwrap();
    let part = |row: usize| {
        let loaded = Linear::new(1024, 1024).bias(false);
        load_weights(&loaded, &path, Strictness::Strict).unwrap();
        let block = Block { start: vec![row, 7], size: vec![1, 3] };
        let elements = loaded.weight.get().host_block(&block).map(|block| block.unwrap().to_vec());
        elements.map_err(|error| error.to_string())
    };
    let whole = values(&layer.weight.get());
    let expected = |row: usize| {
        let row = &whole[row * 1024 + 7..][..3];
        row.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect::<Vec<u8>>()
    };
    assert_eq!([part(0), part(600)], [Ok(expected(0)), Ok(expected(600))]);

    let intact = fs::read(&path).unwrap();
    let data = intact.len() - 4 * 1024 * 1024;
    let mut bytes = intact.clone();
    // In the last of four blocks.
    bytes[data + 3_500_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(part(600), Ok(expected(600)));
    let error = part(900).unwrap_err();
    assert!(
        error.contains("large.safetensors")
            && error.contains("tensor `weight` does not match its checksum"),
        "{error}"
    );
    let error = StateDict::read(&path).unwrap().get("weight").unwrap_err().to_string();
    assert!(error.contains("tensor `weight` does not match its checksum"), "{error}");

    // Older files have only the checksum of the whole value, which is compared at once.
    let key = br#"\"parts\""#;
    let key = intact.windows(key.len()).position(|window| window == key).unwrap();
    let mut bytes = intact.clone();
    bytes[key + 2] = b'q';
    bytes[data + 3_000_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let loaded = Linear::new(1024, 1024).bias(false);
    let error = load_weights(&loaded, &path, Strictness::Strict).unwrap_err().to_string();
    assert!(error.contains("tensor `weight` does not match its checksum"), "{error}");
}

#[test]
fn a_file_without_checksums_is_read_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let header =
        br#"{"__metadata__":{"a":"b"},"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2]].concat()).unwrap();
    let (tensors, metadata) = read(&path).unwrap();
    assert_eq!((tensors["x"].bytes(), metadata["a"].as_str()), (&[1u8, 2][..], "b"));
    assert_eq!(read_metadata(&path).unwrap(), metadata);
}

/// The peak memory of this process in MB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1000
}

/// Needs no device, because it uses no tensors.
#[test]
#[ignore = "writes 6 GB; run it alone, since it measures the process"]
fn a_file_of_2_gb_is_converted_within_300_mb() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from.safetensors", "to.safetensors"].map(|name| folder.path().join(name));
    // Written piece by piece, so that the values are never in memory at once: 33 tensors of 64 MB,
    // without checksums.
    let tensors: Vec<_> = (0..33)
        .map(|i| (format!("layers.{i:02}.weight"), safetensors::Dtype::F32, vec![4000u64, 4000]))
        .collect();
    let mut file = std::fs::File::create(&from).unwrap();
    std::io::Write::write_all(
        &mut file,
        &fulmen_checkpoint::header(&tensors, &BTreeMap::new()).unwrap(),
    )
    .unwrap();
    let mut value = vec![0u8; 64_000_000];
    for i in 0..33 {
        value[..8].copy_from_slice(&[i; 8]);
        std::io::Write::write_all(&mut file, &value).unwrap();
    }
    drop((file, value));
    let values = StateDict::read(&from).unwrap().rename("layers.", "model.layers.").unwrap();
    values.transpose(|name| name.ends_with("07.weight")).unwrap().save(&to).unwrap();
    StateDict::read(&to).unwrap().save_sharded(folder.path().join("sharded"), 500_000_000).unwrap();
    let peak = peak();
    println!("{peak} MB");
    let read = StateDict::read(folder.path().join("sharded")).unwrap();
    let value = read.get("model.layers.30.weight").unwrap().unwrap();
    assert_eq!((read.len(), &value.bytes()[..9]), (33, &[30, 30, 30, 30, 30, 30, 30, 30, 0][..]));
    assert!(peak <= 300, "{peak} MB");
}
