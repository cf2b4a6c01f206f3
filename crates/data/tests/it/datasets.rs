//! Datasets without files, and the row they write to.

use bytemuck::NoUninit;
use expect_test::{Expect, expect};
use fulmen_data::{
    ConcatDataset, DType, Dataset, Element, Error, Field, HostBatch, Result, Sample, Subset,
    TensorDataset, random_split,
};
use half::bf16;

fn numbers(count: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("x", [count], (0..count as i32).collect::<Vec<_>>())
        .build()
        .unwrap()
}

fn read_all(dataset: &dyn Dataset) -> Vec<i32> {
    let all: Vec<usize> = (0..dataset.len()).collect();
    HostBatch::collate(dataset, &all).unwrap().values::<i32>(0).unwrap().to_vec()
}

fn check(error: Error, expect: Expect) {
    expect.assert_eq(&error.to_string());
}

#[test]
fn arrays_of_every_kind_come_out_as_they_went_in() {
    fn round<T: Element + NoUninit + bytemuck::CheckedBitPattern + PartialEq + std::fmt::Debug>(
        values: [T; 4],
    ) {
        let data = TensorDataset::builder().array("x", [2, 2], values).build().unwrap();
        let batch = HostBatch::collate(&data, &[1, 0]).unwrap();
        assert_eq!(batch.values::<T>(0).unwrap(), [values[2], values[3], values[0], values[1]]);
        assert_eq!(batch.fields()[0].dtype, T::DTYPE);
        assert_eq!(batch.mask(), [1.0, 1.0]);
    }
    round([1.5f32, -0.0, f32::MAX, 1e-40]);
    round([1.5f64, -0.0, f64::MAX, 1e-310]);
    round([bf16::ONE, bf16::MAX, bf16::MIN, bf16::EPSILON]);
    round([1u8, 0, 255, 3]);
    round([1i64, i64::MIN, i64::MAX, 3]);
    round([true, false, false, true]);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let builder = TensorDataset::builder;
    check(
        builder()
            .array("image", [3, 2], [0u8; 6])
            .array("label", [2], [0i32; 2])
            .build()
            .unwrap_err(),
        expect![
            "array `image` has 3 samples, but array `label` has 2; the first axis of all arrays must be equal"
        ],
    );
    check(
        builder().array("x", [3, 2], [0u8; 5]).build().unwrap_err(),
        expect!["array `x` has 5 values, which do not fill the shape [3, 2]"],
    );
    check(
        builder().array("x", [], [0u8; 1]).build().unwrap_err(),
        expect!["array `x` has the shape []; it needs a first axis, which counts the samples"],
    );
    check(
        builder().build().unwrap_err(),
        expect!["a TensorDataset needs at least one array; add one with `.array(..)`"],
    );
    let error = builder().array("x", [usize::MAX, 2], [0u8; 1]).build().unwrap_err();
    assert!(error.is_usage(), "{error}");
    let error = builder().array("x", [1, usize::MAX, 2], [0u8; 1]).build().unwrap_err();
    assert!(error.is_field(), "{error}");
}

#[test]
fn a_subset_reads_the_samples_it_names() {
    let subset = Subset::new(numbers(5), [4, 0, 4]).unwrap();
    assert_eq!(read_all(&subset), [4, 0, 4]);
    check(
        Subset::new(numbers(5), [1, 5]).unwrap_err(),
        expect!["index 5 (at position 1 of a Subset) is not in the dataset, which has 5 samples"],
    );
}

#[test]
fn concatenated_datasets_follow_one_another_and_empty_ones_vanish() {
    let empty = Subset::new(numbers(1), []).unwrap();
    let joined =
        ConcatDataset::new(vec![Box::new(numbers(2)), Box::new(empty), Box::new(numbers(3))])
            .unwrap();
    assert_eq!(read_all(&joined), [0, 1, 0, 1, 2]);
    let other = TensorDataset::builder().array("x", [1], [0.5f32]).build().unwrap();
    check(
        ConcatDataset::new(vec![Box::new(numbers(2)), Box::new(other)]).map(|_| ()).unwrap_err(),
        expect![
            "dataset 1 of a ConcatDataset has the fields (x f32[]), but dataset 0 has (x i32[]); they must be equal"
        ],
    );
    assert!(ConcatDataset::new(Vec::new()).is_err());
}

#[test]
fn a_random_split_gives_each_sample_to_one_part_and_repeats_itself() {
    let split = |seed| random_split(numbers(100), [70, 0, 30], seed).unwrap();
    let parts: Vec<Vec<i32>> = split(3).iter().map(|part| read_all(part)).collect();
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [70, 0, 30]);
    let mut all = parts.concat();
    assert_ne!(all, (0..100).collect::<Vec<_>>());
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
    assert_eq!(split(3)[2].indices(), split(3)[2].indices());
    assert_ne!(split(3)[2].indices(), split(4)[2].indices());
    check(
        random_split(numbers(10), [7, 2], 0).unwrap_err(),
        expect!["random_split: the lengths [7, 2] add up to 9, but the dataset has 10 samples"],
    );
    assert!(random_split(numbers(10), [usize::MAX, 11], 0).is_err());
}

/// A dataset whose `read` is the given function.
struct FnDataset<F>(Vec<Field>, F);

impl<F: Fn(&mut Sample<'_>) -> Result<()> + Send + Sync + 'static> Dataset for FnDataset<F> {
    fn len(&self) -> usize {
        1
    }
    fn fields(&self) -> Vec<Field> {
        self.0.clone()
    }
    fn read(&self, _: usize, sample: &mut Sample<'_>) -> Result<()> {
        (self.1)(sample)
    }
}

fn write(
    read: impl Fn(&mut Sample<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<HostBatch> {
    let fields = vec![Field::new("x", DType::F32, [2]), Field::new("y", DType::Bool, [])];
    HostBatch::collate(&FnDataset(fields, read), &[0])
}

#[test]
fn a_sample_can_be_written_in_every_way() {
    let batch = write(|sample| {
        let x = sample.values_mut::<f32>(0)?;
        x[1] = 2.0;
        sample.values_mut::<f32>(0)?[0] = 1.0;
        sample.field_mut(1)?[0] = 1;
        Ok(())
    });
    let batch = batch.unwrap();
    assert_eq!(batch.values::<f32>(0).unwrap(), [1.0, 2.0]);
    assert_eq!(batch.values::<bool>(1).unwrap(), [true]);
    assert_eq!(batch.field_index("y"), Some(1));
    assert_eq!(batch.field_index("z"), None);
}

#[test]
fn a_sample_refuses_what_is_not_declared() {
    check(
        write(|sample| sample.write_slice(0, &[1.0f32, 2.0])).unwrap_err(),
        expect![
            "sample 0: Dataset::read did not write `y bool[]`; it must write every field that Dataset::fields names"
        ],
    );
    check(
        write(|sample| sample.write_slice(0, &[1.0f32; 3])).unwrap_err(),
        expect!["sample 0: field `x f32[2]` takes 2 values per sample, but 3 were written"],
    );
    check(
        write(|sample| sample.write(0, &[0; 7])).unwrap_err(),
        expect!["sample 0: field `x f32[2]` takes 8 bytes per sample, but 7 were written"],
    );
    check(
        write(|sample| sample.write_slice(0, &[1i32, 2])).unwrap_err(),
        expect![
            "sample 0: field `x f32[2]` was written as i32; convert the values to f32, or declare the field as i32"
        ],
    );
    check(
        write(|sample| sample.write_value(2, 1i32)).unwrap_err(),
        expect!["sample 0: there is no field 2; the fields are [0: x f32[2], 1: y bool[]]"],
    );
    let error = write(|sample| sample.values_mut::<i32>(0).map(|_| ())).unwrap_err();
    assert!(error.is_field(), "{error}");
}

#[test]
fn a_batch_refuses_to_be_read_as_what_it_is_not() {
    let batch = write(|sample| {
        sample.write_slice(0, &[1.0f32, 2.0])?;
        sample.write(1, &[7])
    });
    let batch = batch.unwrap();
    check(batch.values::<i32>(0).unwrap_err(), expect!["field `x f32[2]` was read as i32"]);
    check(
        batch.values::<bool>(1).unwrap_err(),
        expect!["field `y bool[]` holds bytes that are not bool"],
    );
    assert!(batch.field_bytes(2).unwrap_err().is_field());
    let error = HostBatch::collate(&numbers(3), &[0, 3]).unwrap_err();
    check(error, expect!["there is no sample 3; the dataset has 3"]);
}

#[test]
fn two_fields_of_one_name_are_refused() {
    let fields = vec![Field::new("x", DType::F32, []), Field::new("x", DType::U8, [])];
    let error =
        HostBatch::collate(&FnDataset(fields, |_: &mut Sample<'_>| Ok(())), &[0]).unwrap_err();
    check(error, expect!["two fields are named `x`; each field of a dataset needs a unique name"]);
}
