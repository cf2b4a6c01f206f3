//! Weights in several files and in PyTorch's formats: loading, renaming, splitting and merging;
//! damaged or malicious files are rejected.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::collections::BTreeMap;
use std::fs;

use crate::common::reference::path;
use crate::common::values;
use fulmen_nn::safetensors::write;
use fulmen_nn::weights::{StateDict, Strictness, load_weights, save_sharded_weights, save_weights};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Literal;

fn model() -> Vec<Linear> {
    vec![Linear::new(20, 10), Linear::new(10, 30), Linear::new(30, 2)]
}

#[test]
fn a_model_in_shards_comes_back_and_says_how_it_was_split() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("model");
    let saved = model();
    saved.initialize(1);
    save_sharded_weights(&saved, &folder, 1000).unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let shards = names.len() - 1;
    assert_eq!(names[shards], "model.safetensors.index.json");
    assert_eq!(names[0], format!("model-00001-of-{shards:05}.safetensors"));
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join(&names[shards])).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * saved.num_parameters());
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 6);

    // Loaded by the folder and by the index.
    for path in [folder.clone(), folder.join("model.safetensors.index.json")] {
        let loaded = model();
        assert!(load_weights(&loaded, &path, Strictness::Strict).unwrap().is_complete());
        for ((name, a), (_, b)) in saved.state().iter().zip(loaded.state()) {
            assert_eq!(values(&a.get()), values(&b.get()), "{name}");
        }
    }
    // No file is overwritten, and no temporary file is left behind.
    let error = save_sharded_weights(&saved, &folder, 1000).unwrap_err();
    assert!(error.is_io() && error.to_string().contains("the folder is not empty"), "{error}");
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    let empty = parent.path().join("empty");
    fs::create_dir(&empty).unwrap();
    save_sharded_weights(&saved, &empty, u64::MAX).unwrap();
    assert!(empty.join("model-00001-of-00001.safetensors").is_file());
}

#[test]
fn an_index_that_lies_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("model");
    let saved = model();
    saved.initialize(1);
    save_sharded_weights(&saved, &folder, 1000).unwrap();
    let index = folder.join("model.safetensors.index.json");
    let refused = |text: &str, expected: &str| {
        fs::write(&index, text).unwrap();
        let error = StateDict::read(&folder).unwrap_err();
        assert!(error.is_format() && error.to_string().contains(expected), "{error}");
    };
    refused("{", "index.json: not a valid index of weight files");
    // A sparse file of a terabyte.
    fs::OpenOptions::new().write(true).open(&index).unwrap().set_len(1 << 40).unwrap();
    let error = StateDict::read(&folder).unwrap_err();
    assert!(
        error.is_format() && error.to_string().contains("it is larger than 200.0 MB"),
        "{error}"
    );
    refused("{}", "it has no table `weight_map`");
    refused(r#"{"weight_map": {"a": 3}}"#, "the file of `a` is 3");
    for outside in ["../x.safetensors", "/etc/passwd", "", ".."] {
        refused(
            &format!(r#"{{"weight_map": {{"a": "{outside}"}}}}"#),
            "which is not a file next to the index",
        );
    }
    // An index must not list an index: itself, or another one that lists the first, would be a
    // cycle.
    refused(
        r#"{"weight_map": {"a": "model.safetensors.index.json"}}"#,
        "it is itself an index of weight files",
    );
    fs::write(
        folder.join("other.json"),
        r#"{"weight_map": {"a": "model.safetensors.index.json"}}"#,
    )
    .unwrap();
    refused(r#"{"weight_map": {"a": "other.json"}}"#, "it is itself an index of weight files");
    refused(
        r#"{"weight_map": {"a": "gone.safetensors"}}"#,
        "names `gone.safetensors`, which is not next to it",
    );
    let first = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("model-00001"))
        .unwrap();
    refused(&format!(r#"{{"weight_map": {{"none": "{first}"}}}}"#), "does not contain it");
}

#[test]
fn what_a_folder_or_a_file_is_not_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = StateDict::read(folder.path()).unwrap_err();
    assert!(
        error.is_format()
            && error.to_string().contains("it does not contain model.safetensors.index.json"),
        "{error}"
    );
    let error = StateDict::read(folder.path().join("none.pt")).unwrap_err();
    assert!(error.is_io() && error.to_string().contains("none.pt"), "{error}");
    let text = folder.path().join("notes.pt");
    for content in ["", "hello, this file has no weights"] {
        fs::write(&text, content).unwrap();
        let error = StateDict::read(&text).unwrap_err();
        assert!(error.is_format() && error.to_string().contains("notes.pt"), "{error}");
    }
}

#[test]
fn names_are_changed_or_the_mistake_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let literal = |v: &[f32], shape: &[usize]| Literal::from_slice(v, shape).unwrap();
    let tensors = [
        ("model.a.weight".to_owned(), literal(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])),
        ("model.b.weight".to_owned(), literal(&[7.0], &[1])),
        ("steps".to_owned(), literal(&[8.0], &[1])),
    ];
    write(&path, &tensors, &BTreeMap::new()).unwrap();
    let all = StateDict::read(&path).unwrap();
    let names =
        |dict: &StateDict| dict.iter().map(|(name, ty)| format!("{name} {ty}")).collect::<Vec<_>>();
    let swapped = all.part("model").unwrap().transpose(|name| name.starts_with('a')).unwrap();
    assert_eq!(names(&swapped), ["a.weight f32[3, 2]", "b.weight f32[1]"]);
    let read = swapped.get("a.weight").unwrap().unwrap();
    assert_eq!(read.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert!(swapped.get("model.a.weight").unwrap().is_none());
    let twice = swapped.transpose(|name| name == "a.weight").unwrap();
    assert_eq!(twice.get("a.weight").unwrap().unwrap().bytes(), tensors[0].1.bytes());
    assert_eq!(names(&all.rename("model.", "m.").unwrap())[0], "m.a.weight f32[2, 3]");
    let selected =
        all.rename_with(|name| name.starts_with("model").then(|| name.to_owned())).unwrap();
    assert_eq!((selected.len(), all.len(), selected.is_empty()), (2, 3, false));

    let line = line!() + 1;
    let error = all.part("state_dict").unwrap_err();
    let text = error.to_string();
    assert!(error.is_usage() && text.contains(&format!("state_dict.rs:{line}:")), "{text}");
    assert!(
        text.contains(
            "begins with `state_dict.`; the names are model.a.weight, model.b.weight, steps"
        ),
        "{text}"
    );
    let error = all.rename_with(|_| Some("same".into())).unwrap_err().to_string();
    assert!(
        error.contains("`model.a.weight` and `model.b.weight` would both get the name `same`"),
        "{error}"
    );
    let error = all.transpose(|name| name == "steps").unwrap_err().to_string();
    assert!(
        error.contains("transpose: `steps` is f32[1], which does not have two axes"),
        "{error}"
    );
    assert!(all.transpose(|_| false).unwrap_err().is_usage());
}

#[test]
fn a_tensor_whose_stored_values_have_another_sign_is_refused() {
    for file in ["negative.pt", "negative_old.pt"] {
        let error = StateDict::read(path(file)).unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_format() && text.contains("PyTorch's negative or conjugate bit"),
            "{text}"
        );
    }
    let resolved = StateDict::read(path("resolved.pt")).unwrap();
    assert_eq!(resolved.get("weight").unwrap().unwrap().to_f64(), [-2.0, 4.0]);
}

#[test]
fn a_damaged_file_of_pytorch_is_an_error_and_changes_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(path("../../../models/reference/mistral/pytorch_model.bin")).unwrap();
    let bad = folder.path().join("bad.bin");
    let try_all = |bytes: &[u8]| -> Result<(), fulmen_nn::Error> {
        fs::write(&bad, bytes).unwrap();
        let dict = StateDict::read(&bad)?;
        let names: Vec<String> = dict.iter().map(|(name, _)| name.to_owned()).collect();
        names.iter().try_for_each(|name| dict.get(name).map(|_| ()))
    };
    try_all(&whole).unwrap();
    for length in (0..whole.len()).step_by(97) {
        let error = try_all(&whole[..length]).unwrap_err();
        assert!(error.to_string().contains("bad.bin"), "{error}");
    }
    // With any byte changed, the result is an error or other values, but never a panic.
    for i in (0..whole.len()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[i] ^= 0x55;
        let _ = try_all(&bytes);
    }
}

#[test]
fn no_code_in_a_pickle_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("was-here");
    let path = folder.path().join("hostile.pt");
    // Python would run this as `os.system("touch ...")`.
    let pickle = format!("cposix\nsystem\n(S'touch {}'\ntR.", mark.display());
    for protocol in [&b""[..], b"\x80\x02"] {
        fs::write(&path, [protocol, pickle.as_bytes()].concat()).unwrap();
        let result = StateDict::read(&path);
        assert!(result.is_err() || result.unwrap().is_empty());
        assert!(!mark.exists());
    }
}

#[test]
fn a_renamed_checkpoint_keeps_what_it_does_not_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let layer = Linear::new(3, 2);
    layer.initialize(3);
    save_weights(&BTreeMap::from([("backbone".to_owned(), layer)]), &path).unwrap();
    let other = BTreeMap::from([("head".to_owned(), Linear::new(3, 2))]);
    let dict = StateDict::read(&path).unwrap();
    let error = dict.load_into(&other, Strictness::Strict).unwrap_err().to_string();
    assert!(error.contains("missing in the file: head.weight, head.bias"), "{error}");
    assert!(error.contains("not part of the model: backbone.bias, backbone.weight"), "{error}");
    let report =
        dict.rename("backbone", "head").unwrap().load_into(&other, Strictness::Strict).unwrap();
    assert_eq!(report.loaded, ["head.weight", "head.bias"]);
}
