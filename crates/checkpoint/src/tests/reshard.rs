//! Tests that checkpoints can be read in other parts than they were written in, that merged files
//! have the same values, and that every reader of the format opens them.

use std::fs;

use crate::{
    Checkpoint, CheckpointWriter, Difference, Dtype, MergeOptions, Part, Rectangle, WrittenShard,
    diff, merge, verify,
};
use safetensors::SafeTensors;

use super::common::{DividedTensor, SMALL, element, expected, local, pieces, read_all, write};

/// The tensors are divided along each axis. The parts of `rows` have more than one block.
const TENSORS: [DividedTensor<'static>; 6] = [
    ("columns", Dtype::F32, &[100, 1000], &[1, 7]),
    ("rows", Dtype::F32, &[600, 1000], &[2, 1]),
    ("grid", Dtype::BF16, &[9, 10, 11], &[2, 3, 4]),
    ("odd", Dtype::U8, &[3, 100_001], &[1, 2]),
    ("f64", Dtype::F64, &[13], &[4]),
    ("scalar", Dtype::I64, &[], &[]),
];

#[test]
fn any_rectangle_is_read_whatever_parts_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    for (step, processes) in [(1, 1), (2, 3), (3, 8)] {
        write(&store, step, &TENSORS, processes).unwrap();
        let checkpoint = Checkpoint::open(store.clone(), &format!("step_{step}")).unwrap();
        for (name, dtype, shape, _) in TENSORS {
            for counts in [[1, 1, 1], [5, 1, 1], [1, 4, 2], [2, 3, 5]] {
                for rectangle in pieces(shape, &counts[..shape.len()]) {
                    let read = checkpoint.read(name, &rectangle).unwrap();
                    assert!(
                        read == expected(name, dtype, shape, &rectangle),
                        "{name}{rectangle} of {processes}"
                    );
                }
            }
        }
        assert!(verify(&checkpoint).is_empty());
    }
    // The values do not depend on how the tensors were divided.
    let [first, last] =
        ["step_1", "step_3"].map(|name| Checkpoint::open(store.clone(), name).unwrap());
    let differences = diff(&first, &last).unwrap();
    assert!(
        matches!(&differences[..], [Difference::Run { name, .. }] if name == "step"),
        "{differences:?}"
    );
}

#[test]
fn merged_files_and_shards_open_with_every_reader_of_the_format() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    write(&store, 1, &TENSORS, 3).unwrap();
    let checkpoint = Checkpoint::open(store.clone(), "step_1").unwrap();
    merge(&checkpoint, &*store, "one", &MergeOptions::default()).unwrap();
    let several = MergeOptions { max_shard_bytes: Some(600_000), ..MergeOptions::default() };
    let files = merge(&checkpoint, &*store, "several", &several).unwrap();
    assert_eq!(files.len(), 4, "{files:?}");
    let index =
        fs::read_to_string(folder.path().join("several/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let merged = fs::read(folder.path().join("one/model.safetensors")).unwrap();
    let merged = SafeTensors::deserialize(&merged).unwrap();
    for (name, dtype, shape, _) in TENSORS {
        let whole = expected(name, dtype, shape, &Rectangle::whole(shape));
        assert!(merged.tensor(name).unwrap().data() == whole, "{name}");
        let file = index["weight_map"][name].as_str().unwrap();
        let file = fs::read(folder.path().join("several").join(file)).unwrap();
        let view = SafeTensors::deserialize(&file).unwrap();
        assert!(view.tensor(name).unwrap().data() == whole, "{name}");
    }
    assert!(merge(&checkpoint, &*store, "one", &MergeOptions::default()).unwrap_err().is_usage());
    // The name of a part includes its rectangle; a whole tensor keeps its name.
    let shards: Vec<Vec<u8>> = (0..3)
        .map(|process| {
            fs::read(folder.path().join(format!("step_1/shard_{process}.safetensors"))).unwrap()
        })
        .collect();
    let names: Vec<String> = shards
        .iter()
        .flat_map(|shard| {
            SafeTensors::deserialize(shard)
                .unwrap()
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        names.contains(&"rows[0:300, 0:1000]".to_owned()) && names.contains(&"scalar".to_owned()),
        "{names:?}"
    );
}

#[test]
fn weights_alone_leave_out_the_training_state() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    write(&store, 1, &SMALL, 2).unwrap();
    let checkpoint = Checkpoint::open(store.clone(), "step_1").unwrap();
    read_all(&checkpoint, &SMALL).unwrap();
    merge(
        &checkpoint,
        &*store,
        "weights",
        &MergeOptions { weights_only: true, ..MergeOptions::default() },
    )
    .unwrap();
    let file = fs::read(folder.path().join("weights/model.safetensors")).unwrap();
    let mut names: Vec<String> =
        SafeTensors::deserialize(&file).unwrap().names().into_iter().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["empty", "fc.bias", "fc.weight"]);
}

#[test]
fn values_that_differ_are_counted_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let write = |name: &str, values: [f32; 4]| {
        let writer = CheckpointWriter::new(store.clone(), name).unwrap();
        let mut shard =
            writer.shard("s.safetensors", vec![Part::whole("w", Dtype::F32, [4])]).unwrap();
        shard.write(&values.map(f32::to_le_bytes).concat()).unwrap();
        let shards = vec![shard.commit().unwrap()];
        writer.commit(Default::default(), shards).unwrap();
        Checkpoint::open(store.clone(), name).unwrap()
    };
    let first = write("a", [1.0, 2.0, f32::NAN, 4.0]);
    let second = write("b", [1.0, 2.5, f32::NAN, 3.0]);
    let values =
        Difference::Values { name: "w".into(), different: 2, elements: 4, largest: Some(1.0) };
    assert_eq!(diff(&first, &second).unwrap(), [values]);
}

#[test]
fn shards_that_are_not_one_checkpoint_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let row = |row: u64| Part::slice("w", Dtype::U8, [3, 2], Rectangle::new([row, 0], [1, 2]));
    let check = |shards: &[(&str, Vec<Part>)], expected: &str| {
        let writer = CheckpointWriter::new(store.clone(), "step_1").unwrap();
        let written: Vec<WrittenShard> = shards
            .iter()
            .map(|(file, parts)| {
                let mut shard = writer.shard(file, parts.clone()).unwrap();
                while let Some(part) = shard.next_part() {
                    shard.write(&vec![0; part.bytes() as usize]).unwrap();
                }
                // Convert to JSON and back, as processes exchange shards.
                serde_json::from_str(&serde_json::to_string(&shard.commit().unwrap()).unwrap())
                    .unwrap()
            })
            .collect();
        let error = writer.commit(Default::default(), written).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    };
    check(
        &[("a.safetensors", vec![row(0)]), ("b.safetensors", vec![row(1)])],
        "`w` has 6 elements, but its parts hold 4",
    );
    check(
        &[("a.safetensors", vec![row(0), row(1)]), ("b.safetensors", vec![row(1), row(2)])],
        "has overlapping parts",
    );
    check(
        &[
            ("a.safetensors", vec![row(0)]),
            ("b.safetensors", vec![Part::whole("w", Dtype::U8, [2])]),
        ],
        "the same tensors",
    );
    assert!(Checkpoint::open(store.clone(), "step_1").unwrap_err().is_not_found());
    // Parts that are in no shard are an error too.
    let writer = CheckpointWriter::new(store, "step_1").unwrap();
    for parts in [
        vec![row(3)],
        vec![row(0), row(0)],
        vec![Part::whole("", Dtype::U8, [1])],
        vec![Part::whole("w", Dtype::F4, [2])],
    ] {
        assert!(writer.shard("c.safetensors", parts).unwrap_err().is_usage());
    }
    for name in ["../c.safetensors", "", ".c.safetensors", "c", "manifest.json"] {
        assert!(writer.shard(name, Vec::new()).unwrap_err().is_usage());
    }
}

#[test]
fn the_reference_of_these_tests_differs_from_element_to_element() {
    let values: std::collections::BTreeSet<Vec<u8>> =
        (0..1000).map(|i| element("w", Dtype::F32, i)).collect();
    assert_eq!(values.len(), 1000);
}
